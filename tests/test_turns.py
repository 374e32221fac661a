"""Rotation labels: what is turned, what is labelled how, and that only upright answers are left."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import grown
from grown.config import Recipe
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.errors import ConfigError
from grown.nn.layers import Head
from grown.train import turns
from grown.train.batches import Batches
from helpers import make_task, quick

PLAIN = Normalisation((0.0,), (1.0,))
RECIPE = Recipe(epochs=2, batch=16, turns=True, agree=0.5, crop=1, flip=True)


def images(height: int = 6, width: int = 6) -> Part:
    draw = torch.Generator().manual_seed(0)
    return Part(torch.randint(0, 256, (8, 1, height, width), generator=draw, dtype=torch.uint8), torch.arange(8) % 3)


def test_every_image_comes_in_four_turns_with_labels_of_their_own() -> None:
    plain = Batches(images(), PLAIN, Recipe(batch=4), "cpu", 0)
    turned = Batches(images(), PLAIN, Recipe(batch=4, turns=True), "cpu", 0)
    plain.begin(1)
    turned.begin(1)
    for step in range(2):
        one, four = plain.at(step), turned.at(step)
        assert four.x.shape == (16, 1, 6, 6)
        for image in range(4):
            for quarter in range(4):
                at = 4 * image + quarter
                assert torch.equal(four.x[at, 0], torch.rot90(one.x[image, 0], quarter))
                assert int(four.labels[at]) == 4 * int(one.labels[image]) + quarter


def test_mixed_images_have_two_turned_labels() -> None:
    batches = Batches(images(), PLAIN, Recipe(batch=8, turns=True, mixup=1.0, epochs=10), "cpu", 0)
    batches.begin(1)
    batch = batches.at(0)
    assert batch.others is not None
    assert torch.equal(batch.others % 4, batch.labels % 4)
    assert not torch.equal(batch.others, batch.labels)


def test_only_square_images_can_be_turned() -> None:
    with pytest.raises(ConfigError, match="square"):
        Batches(images(6, 5), PLAIN, RECIPE, "cpu", 0)


def test_a_turned_head_answers_upright_outside_of_training() -> None:
    head = Head(3, 5, 1, True, torch.Generator().manual_seed(0))
    upright, x = head.weight.detach().clone(), torch.randn(2, 5)
    head.turn(4, torch.Generator().manual_seed(1))
    assert head(x).shape == (2, 12)
    assert torch.equal(head.eval()(x), F.linear(x, upright, head.bias[::4]))
    head.upright()
    assert torch.equal(head.weight, upright)
    assert torch.equal(head.train()(x), head.eval()(x))


def test_agreement_is_with_what_the_four_turns_say_together() -> None:
    answers = torch.randn(5, 4, 3, 4)  # image, turn, class, turn of the answer
    together = torch.stack([answers[:, turn, :, turn] for turn in range(4)]).mean(0)
    loss = turns.disagreement(answers.flatten(2).flatten(0, 1))
    by_hand = (together.softmax(1) * (together.log_softmax(1) - answers[:, 0, :, 0].log_softmax(1))).sum(1).mean()
    assert float(loss) == pytest.approx(float(by_hand), rel=1e-5)
    for turn in range(4):
        answers[:, turn, :, turn] = together
    assert float(turns.disagreement(answers.flatten(2).flatten(0, 1))) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("name", ["grown", "scratch", "finetune", "adapter", "grow", "pnn"])
def test_every_method_learns_with_turns_and_keeps_a_plain_head(name: str) -> None:
    method = grown.METHODS[name](grown.models.convnet(), quick(recipe=RECIPE, target=100.0, expansions=1))
    for number in range(2):
        report = method.learn(make_task(f"t{number}", classes=4))
        assert method.network(report.name)(torch.zeros(2, 1, 8, 8)).shape == (2, 4)


@pytest.mark.parametrize("name", sorted(set(grown.METHODS) - {"joint"}))
def test_the_first_tasks_get_more_epochs_and_turns_by_any_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Recipe] = []
    begun = Batches.__init__

    def note(self: Batches, part: Part, normalise: Normalisation, recipe: Recipe, *more: object) -> None:
        seen.append(recipe)
        begun(self, part, normalise, recipe, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Batches, "__init__", note)
    settings = quick(recipe=Recipe(epochs=4, batch=8), early=1, early_epochs=2.0, early_turns=True, target=0.0)
    method = grown.METHODS[name](grown.models.convnet(width=0.25), settings)
    for number, (epochs, turned) in enumerate([(8, True), (4, False)]):
        seen.clear()
        method.learn(make_task(f"t{number}", classes=2))
        assert max(recipe.epochs for recipe in seen) == epochs
        assert all(recipe.turns == turned for recipe in seen)


def test_trainings_that_only_decide_get_nothing_more() -> None:
    config = quick(recipe=Recipe(epochs=10), early=2, early_epochs=3.0, early_turns=True, refit=True, decide=0.5)
    assert [config.recipe_of(number).epochs for number in (1, 2, 3)] == [30, 30, 10]
    for number in (1, 2, 3):
        assert (config.deciding(number).epochs, config.deciding(number).turns) == (5, False)
    alone = config.replace(refit=False, decide=1.0)
    assert [alone.deciding(number) for number in (1, 3)] == [alone.recipe_of(number) for number in (1, 3)]
