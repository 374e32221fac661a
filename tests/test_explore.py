"""The script that compares settings on held-out images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import explore
import grown
from grown.bench import runner

SMALL = {"tasks": 2, "epochs": 1, "backbone": "convnet"}


def run(  # type: ignore[type-arg]
    kind: str, variants: dict[str, object], folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> dict[str, dict]:
    (folder / "variants.json").write_text(json.dumps(variants))
    words = [kind, str(folder / "variants.json"), "--benchmark", "digits", "--device", "cpu", "--data", str(folder)]
    monkeypatch.setattr(sys, "argv", ["explore.py", *words, *more, "--out", str(folder / "out.json")])
    explore.main()
    found: dict[str, dict] = json.loads((folder / "out.json").read_text())  # type: ignore[type-arg]
    return found


def test_variants_of_scratch_and_grown_are_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run("scratch", {"narrow": {**SMALL, "width": 0.25}, "wide": SMALL}, tmp_path, monkeypatch)
    assert [len(result["val"]) for result in found.values()] == [2, 2]
    assert found["wide"]["size_x"] == 2
    assert 0.05 < found["narrow"]["size_x"] < 0.2  # over the wide one
    variants = {"still": {**SMALL, "early": 1, "early_epochs": 2}, "growing": {**SMALL, "grow": [2], "step_size": 0.1}}
    found = run("grown", variants, tmp_path, monkeypatch)
    assert found["growing"]["size_x"] > found["still"]["size_x"]
    assert found["still"]["settings"] == variants["still"]
    assert "held-out" in capsys.readouterr().out


def test_any_method_can_be_scored_on_a_network_with_narrow_linear_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**SMALL, "backbone": "lenet", "width": 0.1}
    shapes = {"even": small, "hidden": {**small, "shape": "hidden"}}
    even, hidden = run("packnet", shapes, tmp_path, monkeypatch).values()
    assert len(hidden["val"]) == 2
    assert hidden["size_x"] > 4 * even["size_x"]  # 784 inputs of the first linear layer instead of 64


def test_a_whole_run_reads_held_out_images_in_place_of_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    evaluate = runner.evaluate
    monkeypatch.setattr(runner, "evaluate", lambda net, part, *more: seen.append(part) or evaluate(net, part, *more))
    variant = {"epochs": 1, "seeds": [0, 1], "target": 100.0, "start_size": 0.1}
    found = run("grown", {"grows": variant}, tmp_path, monkeypatch, "--whole")["grows"]
    assert [len(found[key]) for key in ("val", "averages", "grew")] == [7, 2, 2]
    assert [len(grew) for grew in found["grew"]] == [7, 7]
    assert found["averages"][0] != found["averages"][1]
    tests = {bytes(image.numpy().tobytes()) for task in grown.data.stream("digits") for image in task.test.images}
    assert not any(image.numpy().tobytes() in tests for part in seen for image in part.images)


def test_a_setting_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="hight"):
        run("grown", {"wrong": {**SMALL, "hight": 3}}, tmp_path, monkeypatch)


def test_no_variant_begins_after_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variants = {"first": SMALL, "second": SMALL}
    assert list(run("scratch", variants, tmp_path, monkeypatch, "--deadline", "600")) == ["first", "second"]
    (tmp_path / "out.json").unlink()
    with pytest.raises(FileNotFoundError):  # nothing was found, so nothing was written
        run("scratch", variants, tmp_path, monkeypatch, "--deadline", "0")
    assert capsys.readouterr().out.count("not begun") == 2
