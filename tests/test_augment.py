"""What is done to images on the device, and what of it the labels learn."""

from __future__ import annotations

import pytest
import torch

from grown.config import Recipe
from grown.data.task import Normalisation, Part
from grown.errors import ConfigError
from grown.train import policy
from grown.train.batches import Batches

PLAIN = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def part(count: int = 32, size: int = 12) -> Part:
    draw = torch.Generator().manual_seed(0)
    return Part(
        torch.randint(1, 256, (count, 3, size, size), generator=draw, dtype=torch.uint8), torch.arange(count) % 5
    )


def test_cutout_blanks_one_square() -> None:
    batches = Batches(part(), PLAIN, Recipe(batch=32, cutout=4), "cpu", 0)
    batches.begin(1)
    x = batches.at(0).x
    blank = (x == 0).all(1)
    counts = blank.flatten(1).sum(1)
    assert int(counts.max()) == 16
    assert int(counts.min()) >= 4  # at a corner
    for image in blank:
        rows, columns = image.any(1).nonzero().flatten(), image.any(0).nonzero().flatten()
        assert bool(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all())


def test_cutmix_fills_a_box_from_others_and_says_how_much() -> None:
    source = part()
    batches = Batches(source, PLAIN, Recipe(batch=32, cutmix=1.0, epochs=10), "cpu", 0)
    whole = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    seen = 0
    for epoch in range(1, 9):
        batches.begin(epoch)
        whole.begin(epoch)
        mixed, plain = batches.at(0), whole.at(0)
        assert plain.others is None
        assert torch.equal(mixed.labels, plain.labels)
        changed = (mixed.x != plain.x).any(1).float().mean()
        assert mixed.others is not None
        share = mixed.share
        assert share is not None
        assert float(changed) <= float(share) + 1e-6
        if float(share) > 0.1:
            seen += 1
            assert float(changed) > 0.5 * float(share)
    assert seen > 3
    batches.begin(10)
    assert float(batches.at(0).share) == 0.0  # type: ignore[arg-type]


def test_a_whole_epoch_at_once_is_its_batches() -> None:
    recipe = Recipe(batch=8, crop=2, flip=True, cutout=4, policy="trivial", cutmix=0.8, epochs=10)
    batches = Batches(part(), PLAIN, recipe, "cpu", 0)
    batches.begin(3)
    whole = batches.whole()
    single = [batches.at(step) for step in range(batches.steps)]
    assert torch.equal(whole.x, torch.cat([batch.x for batch in single]))
    assert torch.equal(whole.labels, torch.cat([batch.labels for batch in single]))
    assert torch.equal(whole.others, torch.cat([batch.others for batch in single]))  # type: ignore[arg-type, misc]
    assert torch.equal(whole.share, torch.stack([batch.share for batch in single]))  # type: ignore[arg-type, misc]


def test_an_epoch_depends_on_its_number_alone() -> None:
    recipe = Recipe(batch=8, crop=2, flip=True)
    one, other = (Batches(part(), PLAIN, recipe, "cpu", 0, "t") for _ in range(2))
    one.begin(1)
    one.begin(2)
    other.begin(2)
    assert torch.equal(one.at(0).x, other.at(0).x)
    one.begin(3)
    assert not torch.equal(one.at(0).x, other.at(0).x)


@pytest.mark.parametrize("name", policy.OPERATIONS)
def test_each_operation_of_the_policy_does_what_it_says(name: str) -> None:
    images = part(8, 16).images.permute(0, 2, 3, 1)
    which = torch.full((8,), policy.OPERATIONS.index(name))
    still = policy.apply(images, which, torch.zeros(8))
    moved = policy.apply(images, which, torch.full((8,), 0.6))
    assert still.shape == images.shape
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= 255
    if name in ("identity", "brightness", "colour", "contrast", "sharpness", "turn", "shear-x", "move-y"):
        assert torch.allclose(still, images.float(), atol=1e-3)
    if name == "identity":
        assert torch.equal(moved, images.float())
    else:
        assert not torch.allclose(moved, images.float())
    if name == "move-x":
        shift = int(0.6 * 16 * 0.99 + 0.5)
        assert torch.equal(moved[:, :, : 16 - shift], images[:, :, shift:].float())
    if name == "brightness":
        assert torch.allclose(moved, (images * 1.594).clamp(0, 255), atol=1e-2)
    if name == "posterise":
        assert bool((moved % 16 == 0).all())


def test_the_last_epochs_may_be_calm() -> None:
    source = part()
    strong = Batches(source, PLAIN, Recipe(batch=32, epochs=10, policy="trivial", cutout=4, calm=0.2), "cpu", 0)
    plain = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    same = []
    for epoch in (1, 8, 9, 10):
        strong.begin(epoch)
        plain.begin(epoch)
        same.append(torch.equal(strong.at(0).x, plain.at(0).x))
    assert same == [False, False, True, True]
    assert all(bool((x >= 1).all()) for x in strong.inputs(epochs=1))  # so are those that give statistics: no hole


def test_the_policy_goes_as_far_as_its_reach() -> None:
    far, near = (Batches(part(), PLAIN, Recipe(batch=32, policy="trivial", reach=r), "cpu", 0) for r in (1.0, 0.25))
    strengths = []
    for batches in (far, near):
        batches.begin(1)
        strengths.append(batches._plan["strength"])
    assert torch.equal(strengths[1], 0.25 * strengths[0])
    assert float(strengths[0].abs().max()) > 0.9
    for name in ("reach", "calm"):
        with pytest.raises(ConfigError, match=name):
            Recipe(**{name: 1.5})  # type: ignore[arg-type]


def test_features_are_only_normalised() -> None:
    features = Part(torch.randn(20, 4), torch.arange(20) % 2)
    batches = Batches(features, Normalisation((1.0,) * 4, (2.0,) * 4), Recipe(batch=5, crop=2, flip=True), "cpu", 0)
    batches.begin(1)
    x, labels = batches.at(0).x, batches.at(0).labels
    assert x.shape == (5, 4)
    found = [(features.images - 1) / 2 == row for row in x]
    assert all(bool(match.all(1).any()) for match in found)
    assert len(labels) == 5


def test_mixup_blends_with_others_and_says_how_much() -> None:
    source = part()
    batches = Batches(source, PLAIN, Recipe(batch=32, mixup=1.0, epochs=10), "cpu", 0)
    whole = Batches(source, PLAIN, Recipe(batch=32, epochs=10), "cpu", 0)
    for epoch in range(1, 9):
        batches.begin(epoch)
        whole.begin(epoch)
        mixed, plain = batches.at(0), whole.at(0)
        assert mixed.share is not None
        share = float(mixed.share)
        assert 0 < share < 0.5
        others = (mixed.x - (1 - share) * plain.x) / share
        far = (others[:, None] - plain.x[None]).flatten(2).abs().amax(2)  # which image each was blended with
        partner = far.argmin(1)
        assert float(far.amin(1).max()) < 0.5
        assert torch.equal(plain.labels[partner], mixed.others)
    batches.begin(10)
    assert float(batches.at(0).share) == 0.0  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shares of the batches"):
        Recipe(cutmix=0.6, mixup=0.6)


def test_what_norms_are_measured_on_is_not_mixed_and_of_one_size() -> None:
    many = part(count=620)
    recipe = Recipe(batch=32, mixup=1.0, cutmix=0.0, epochs=4)
    chunks = list(Batches(many, PLAIN, recipe, "cpu", 0).inputs(epochs=2))
    assert [len(chunk) for chunk in chunks] == [250, 250, 250, 250]
    assert all(bool((chunk == chunk.round()).all()) for chunk in chunks)  # a blend would not be whole
    assert [len(chunk) for chunk in Batches(part(), PLAIN, recipe, "cpu", 0).inputs(epochs=1)] == [32]
