"""Labels for images: of a known task, of an inferred one, of many in one batch, and none of these."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import grown
from forging import GOLDEN, forge
from grown.errors import ConfigError, FileError, TaskError
from grown.io import container
from grown.io.versions import DELTA
from grown.methods.grown import delta
from grown.methods.grown.inference import answer
from grown.methods.grown.removal import remove
from helpers import call, make_task, quick

NAMES = ("low", "low-turned", "high-shuffled")


@functools.cache
def stages() -> tuple[bytes, ...]:
    """A model after each of three tasks that look different."""
    torch.manual_seed(0)
    recipe = grown.Recipe(epochs=6, smoothing=0.1)
    learner = grown.Learner(grown.models.convnet(), quick(recipe=recipe, target=95.0, expansions=1))
    found = []
    for name in NAMES:
        learner.learn(task(name))
        state = learner.state()
        found.append(container.dump(state.tensors, state.meta))
    return tuple(found)


def task(name: str) -> grown.Task:
    return next(task for task in grown.data.stream("digits") if task.name == name)


def test_images(name: str) -> np.ndarray:
    return task(name).test.images.permute(0, 2, 3, 1).numpy()


test_images.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m"
    path.write_bytes(stages()[-1])
    return path


def test_many_tasks_in_one_batch_give_what_each_gives_alone(model: Path) -> None:
    learner = grown.load(model)
    draw = np.random.default_rng(0)
    names = [NAMES[number] for number in draw.integers(0, 3, 60)]
    batch = np.stack([test_images(name)[number] for number, name in enumerate(names)])
    found = learner.predict_mixed(batch, names)
    assert len(found) == 60
    for name in NAMES:
        mine = [number for number, other in enumerate(names) if other == name]
        alone = learner.predict(name, batch[mine])
        assert torch.allclose(torch.stack([found[number] for number in mine]), alone, atol=1e-6)
        assert [int(found[number].argmax()) for number in mine] == alone.argmax(1).tolist()
    with pytest.raises(TaskError, match="60 images, but 59 tasks"):
        learner.predict_mixed(batch, names[:-1])
    with pytest.raises(ConfigError, match="Did you mean 'low'"):
        learner.predict_mixed(batch, ["lo"] * 60)


def test_a_network_that_is_kept_for_predictions_is_the_tasks_own(model: Path) -> None:
    learner = grown.load(model)
    first = learner.ready("low")
    assert learner.ready("low") is first
    assert learner.extract("low") is not first
    assert not learner.ready("low").training
    before = learner.predict("low", test_images("low"))
    learner.extract("low").get_parameter("0.weight").data.zero_()  # a user's own copy is theirs
    assert torch.equal(before, learner.predict("low", test_images("low")))
    other = grown.load(model)
    remove(other, "low")
    learner.load_state(other.state())
    with pytest.raises(ConfigError):
        learner.ready("low")


def test_a_task_is_inferred_by_features_better_than_by_entropy(model: Path) -> None:
    learner = grown.load(model)
    right = {
        by: np.mean([np.mean([found == name for found in learner.infer(test_images(name), by)]) for name in NAMES])
        for by in ("features", "entropy")
    }
    assert right["features"] > 0.85
    assert right["features"] > right["entropy"] > 0.4
    with pytest.raises(ConfigError, match="Did you mean 'entropy'"):
        learner.infer(test_images("low"), "entropi")


def test_a_stated_share_of_known_images_is_rejected_and_most_of_the_unknown(model: Path) -> None:
    learner = grown.load(model)

    def rejected(name: str, images: np.ndarray) -> float:
        return float(np.mean([found.nearer > 0.95 for found in answer(learner, images, [name] * len(images))]))

    for name in NAMES:
        assert rejected(name, test_images(name)) < 0.15
        for other in NAMES:
            if other != name:
                assert rejected(name, test_images(other)) > 0.6


def test_what_is_remembered_is_kept_in_the_file(model: Path, tmp_path: Path) -> None:
    learner = grown.load(model)
    learner.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == model.read_bytes()
    entry = container.read(model).meta["tasks"][0]
    assert len(json.dumps(entry["features"])) < 1000
    with_it, without = learner.size().bytes["total"], None
    learner.records["low"].features = None
    without = learner.size().bytes["total"]
    assert with_it - without < 1000
    # A loop of one's own asks for it.
    stage = learner.open(make_task("own", classes=2))
    stage.commit()
    assert learner.records["own"].features is None
    learner.remember(stage.task)
    assert learner.records["own"].features is not None


def test_deltas_and_removals_carry_it(model: Path) -> None:
    old, new = (container.parse(stages()[number]) for number in (0, 2))
    assert delta.apply(old, container.parse(delta.diff(old, new), DELTA)) == stages()[2]
    learner = grown.load(model)
    far = learner.records["low-turned"].features.far
    remove(learner, "low")
    assert learner.records["low-turned"].features.far == far
    assert "low" not in learner.infer(test_images("low-turned"))


def test_a_golden_file_with_features_comes_out_as_it_went_in(tmp_path: Path) -> None:
    path = GOLDEN / "v2-features.safetensors"
    learner = grown.load(path)
    assert all(record.features is not None for record in learner.records.values())
    assert learner.infer(np.zeros((2, 8, 8, 1), np.uint8))[0] in learner.tasks
    learner.save(tmp_path / "m")
    before, after = container.read(path), container.read(tmp_path / "m")
    assert before.meta["tasks"] == after.meta["tasks"]


def without(key: str) -> Any:
    return lambda features: features.pop(key)


FORGERIES: dict[str, tuple[Any, str]] = {
    "no scale": (without("scale"), "lacks 'scale'"),
    "scale zero": (lambda f: f.update(scale=0), "above 0"),
    "not base64": (lambda f: f.update(whitening="?" * 20), "base64"),
    "short": (lambda f: f.update(whitening="AAA="), "136 finite"),
    "not a text": (lambda f: f.update(classes=[3, 3, 3]), "base64"),
    "infinite": (lambda f: f.update(classes=["AHwA" * 10 + "fAA="] * 3), "finite"),
    "a class less": (lambda f: f.update(classes=f["classes"][1:]), "do not go with its classes"),
    "falling": (lambda f: f.update(far=f["far"][::-1]), "do not rise"),
    "far": (lambda f: f.update(far=[1.0]), "list of 6"),
}


@pytest.mark.parametrize("case", sorted(FORGERIES))
def test_forged_features_are_refused(case: str, tmp_path: Path) -> None:
    change, words = FORGERIES[case]

    def forged(_: dict[str, Tensor], meta: dict[str, Any]) -> None:
        change(meta["tasks"][0]["features"])

    (tmp_path / "m").write_bytes(forge((GOLDEN / "v2-features.safetensors").read_bytes(), forged))
    with pytest.raises(FileError, match=words):
        grown.load(tmp_path / "m")


def test_tables_and_lines(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number, image in enumerate(test_images("low")[:3]):
        Image.fromarray(image[..., 0]).save(folder / f"[{number}].png")
    noise = np.random.default_rng(0).integers(0, 17, (30, 40), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    assert call("predict", str(model), "--task", "low", "--top", "3", str(folder)) == 0
    table = capsys.readouterr().out
    for words in ("[0].png", "probability", "%", "low"):
        assert words in table
    probabilities = grown.load(model).predict("low", test_images("low")[:3])
    arguments = ["--task", "low", "--json", "--reject", "0.95", str(folder / "[0].png"), str(folder)]
    assert call("predict", str(model), *arguments) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["image"]).name for row in rows] == ["[0].png", "[0].png", "[1].png", "[2].png", "noise.png"]
    assert rows[1]["probability"] == pytest.approx(float(probabilities[0].max()), abs=1e-5)
    assert rows[-1]["label"] is None
    assert rows[-1]["nearer"] == 1.0
    assert call("predict", str(model), "--task", "auto", "--reject", "0.95", str(folder / "noise.png")) == 0
    assert "none of these" in capsys.readouterr().out


def test_bad_input_is_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, empty = tmp_path / "good.png", tmp_path / "bad.png", tmp_path / "empty"
    Image.fromarray(test_images("low")[0, ..., 0]).save(good)
    bad.write_bytes(good.read_bytes()[:30])
    empty.mkdir()
    old, scratch = str(GOLDEN / "v2-grown.safetensors"), str(GOLDEN / "v2-scratch.safetensors")
    for arguments, words in (
        ([str(model), "--task", "lwo", str(good)], "Did you mean 'low'"),
        ([str(model), "--task", "low", str(bad)], "bad.png: not a readable image"),
        ([str(model), "--task", "low", str(good), str(bad)], "bad.png: not a readable image"),
        ([str(model), "--task", "low", str(bad), "--skip-broken"], "none of these 1 images can be read"),
        ([str(model), "--task", "low", str(empty)], "no images in this folder"),
        ([str(model), "--task", "low", str(tmp_path / "absent.png")], "no such file"),
        ([str(model), "--task", "low"], "images"),
        ([str(model), str(good)], "--task"),
        ([str(model), "--task", "low", str(good), "--top", "0"], "at least 1"),
        ([str(model), "--task", "low", str(good), "--reject", "1.5"], "0.5 to 0.99"),
        ([str(model), "--task", "auto", str(good), "--by", "guess"], "unknown way"),
        ([old, "--task", "auto", str(good)], "no stored features"),
        ([old, "--task", "t0", str(good), "--reject", "0.9"], "no stored features"),
        ([scratch, "--task", "t0", str(good)], "one of 'scratch'"),
    ):
        assert call("predict", *arguments) == 2, arguments
        captured = capsys.readouterr()
        assert words in captured.err
        assert captured.out == ""
        assert captured.err.count("\n") == 1
    assert call("predict", old, "--task", "auto", "--by", "entropy", str(good)) == 0
    assert call("predict", str(model), "--task", "low", "--skip-broken", "--json", str(good), str(bad)) == 0
    captured = capsys.readouterr()
    assert "skipped 1 broken images" in captured.err
