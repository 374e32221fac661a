"""The paper's figure 2: measured, kept, drawn, and judged by a stated criterion."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

import figure2

EPOCHS = 20


def curve(kind: str, seed: int, *, shake: float = 0.0, rise: float = 0.0, ratio: float = 0.4) -> dict[str, Any]:
    """A made-up curve: accuracy and loss that settle, with a zigzag early on and a rise of the loss late."""
    epochs = list(range(1, EPOCHS + 1))
    zigzag = [shake * (-1) ** epoch * (epoch <= EPOCHS // 2) for epoch in epochs]
    late = [rise * max(0.0, epoch / EPOCHS - 0.5) for epoch in epochs]
    points = {
        "epoch": epochs,
        "accuracy": [70.0 + seed - 30 / epoch + 10 * z for epoch, z in zip(epochs, zigzag, strict=True)],
        "loss": [1.0 + 1 / epoch + z + up for epoch, z, up in zip(epochs, zigzag, late, strict=True)],
        "grow_ratio": [ratio + 0.01 * seed] * EPOCHS,
    }
    return {"kind": kind, "seed": seed, "kept_x": ratio, "points": points}


def result(seeds: int = 3, **conventional: float) -> dict[str, Any]:
    curves = []
    for seed in range(seeds):
        more = {name: value * (1 + 0.05 * seed) for name, value in conventional.items()}
        curves += [curve("conventional", seed, **more), curve("sparse", seed)]
    return {"settings": {"backbone": "vgg16-bn", "task": "fish", "seeds": seeds}, "curves": curves}


def verdicts(found: dict[str, Any]) -> list[str]:
    words = ("HOLDS", "DOES NOT HOLD", "UNDECIDED")
    lines = [line.strip() for line in figure2.verdict(found).splitlines()]
    return [word for line in lines for word in words if line.startswith(word)]


def test_each_claim_is_judged_by_its_own_numbers() -> None:
    assert verdicts(result(shake=0.5, rise=2.0, ratio=0.8)) == ["HOLDS", "HOLDS"]
    assert verdicts(result(shake=0.5, rise=0.0, ratio=0.8)) == ["DOES NOT HOLD", "HOLDS"]
    assert verdicts(result(shake=0.5, rise=2.0, ratio=0.4 / 1.1)) == ["HOLDS", "DOES NOT HOLD"]
    assert verdicts(result()) == ["DOES NOT HOLD", "DOES NOT HOLD"]
    assert verdicts(result(seeds=1, shake=0.5, rise=2.0, ratio=0.8)) == ["UNDECIDED", "UNDECIDED"]


def test_better_accuracy_breaks_the_second_claim() -> None:
    found = result(ratio=0.8)
    for each in found["curves"]:
        if each["kind"] == "conventional":
            each["points"]["accuracy"] = [value + 3 for value in each["points"]["accuracy"]]
    assert verdicts(found)[1] == "DOES NOT HOLD"


def test_titles_say_what_is_clear_and_what_is_not() -> None:
    titles = figure2.titles(figure2.compare(result(ratio=0.8)))
    assert titles["accuracy"].startswith("Accuracy: no clear difference")
    assert titles["grow_ratio"] == "Size: grows more with conventional growth\nconventional to 0.85x, sparse to 0.41x"


def test_a_measurement_is_kept_and_drawn_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "deep" / "figure2.json", tmp_path / "figure2.svg"
    small = ["--benchmark", "digits", "--task", "odd", "--backbone", "convnet", "--recipe", "small", "--width", "0.5"]
    figure2.main([*small, "--epochs", "4", "--seeds", "2", "--start", "0.1", "--set", "threads=1", "--out", str(out)])
    first = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert [(c["kind"], c["seed"]) for c in found["curves"]] == [(k, s) for s in (0, 1) for k in figure2.KINDS]
    for each in found["curves"]:
        assert each["points"]["epoch"] == [1, 2, 3, 4]
        assert 0.1 < each["points"]["grow_ratio"][-1] <= 1.0  # it grew from its start
    assert found["settings"]["config"]["growth"] == "slim"
    assert found["curves"][0]["kept_x"] > found["curves"][1]["kept_x"]  # the attentive mask leaves kernels out
    figure2.main(["--from", str(out), "--plot", str(picture)])
    assert figure2.verdict(found) in first
    assert figure2.verdict(found) in capsys.readouterr().out
    assert picture.read_text().lstrip().startswith("<?xml")


def test_a_stopped_run_counts_the_seeds_that_have_both_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = result(seeds=3)
    del stopped["curves"][-1]
    path, picture = tmp_path / "stopped.json", tmp_path / "stopped.svg"
    path.write_text(json.dumps(stopped))
    figure2.main(["--from", str(path), "--plot", str(picture)])
    assert "over 2 seeds" in capsys.readouterr().out
    assert "2 seeds (thin) and their mean" in picture.read_text()
    path.write_text(json.dumps({**stopped, "curves": stopped["curves"][:1]}))
    with pytest.raises(SystemExit, match=r"stopped.json: no seed has both kinds of growth"):
        figure2.main(["--from", str(path)])


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "figure2.json"
    small = ["--benchmark", "digits", "--backbone", "convnet", "--recipe", "small", "--width", "0.25", "--epochs", "3"]
    small += ["--set", "threads=1", "--out", str(out)]
    with pytest.raises(SystemExit, match="no such file to go on from"):
        figure2.main([*small, "--resume"])
    figure2.main([*small, "--seeds", "2"])
    whole = json.loads(out.read_text())
    out.write_text(json.dumps({**whole, "curves": whole["curves"][:3]}))
    figure2.main([*small, "--seeds", "2", "--resume"])
    again = json.loads(out.read_text())
    assert again["curves"][:3] == whole["curves"][:3]  # with their seconds: not measured again
    for one, other in zip(whole["curves"], again["curves"], strict=True):
        assert (one["kind"], one["seed"], one["points"]) == (other["kind"], other["seed"], other["points"])
    with pytest.raises(SystemExit, match="other settings: growth_weight"):
        figure2.main([*small, "--seeds", "2", "--resume", "--set", "growth_weight=0.2"])


def test_bad_options_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="unknown task 'fsh'"):
        figure2.main(["--benchmark", "digits", "--task", "fsh", "--out", str(tmp_path / "a.json")])
    with pytest.raises(SystemExit, match="no such file"):
        figure2.main(["--from", str(tmp_path / "absent.json")])
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SystemExit, match=r"pip install 'grown\[plots\]'"):
        figure2.main(["--from", str(tmp_path / "absent.json"), "--plot", "a.png"])
