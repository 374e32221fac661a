"""The project's own promises: the README's commands and tables are true; layers stay apart."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import accuracy_over_bytes
import figure2
import masked_step

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_ci_calls_the_readmes_test_command() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert commands[0].endswith(".venv/bin/grown run")
    assert commands[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_the_readmes_tables_are_those_of_the_committed_results() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_pictures_are_those_of_the_committed_results() -> None:
    results, images = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
    points = accuracy_over_bytes.read(results / "cifar100-superclass")
    said = {
        "accuracy_over_bytes.svg": accuracy_over_bytes.in_words(points),
        "figure2.svg": figure2.verdict(json.loads((results / "figure2.json").read_text())).splitlines(),
    }
    for name, words in said.items():
        inside = html.unescape((images / name).read_text())
        assert "\n".join(words) in inside, f"docs/images/{name} is out of date"


def test_committed_results_keep_what_is_promised() -> None:
    for path in (ROOT / "benchmarks" / "results" / "digits").glob("*.json"):
        result = json.loads(path.read_text())
        assert result["forgetting"] == 0
    rows = json.loads((ROOT / "benchmarks" / "results" / "masked_step.json").read_text())["rows"]
    assert {row["network"] for row in rows} == {"convnet", "vgg16-bn-pool"}
    assert max(row["ratio"] for row in rows) <= 1.3
    rows = json.loads((ROOT / "benchmarks" / "results" / "latency.json").read_text())["rows"]
    assert {(row["network"], row["batch"]) for row in rows} == {
        (network, batch) for network in ("convnet", "vgg16-bn-pool") for batch in (1, 256)
    }
    # In less than a millisecond, what Python does between the layers of a traced module is more than that.
    assert max(row["ratio"] for row in rows if row["plain_ms"] > 1) <= 1.05


def test_a_masked_step_can_be_measured() -> None:
    row = masked_step.measure("convnet", 0.25, 8, 1, True, 2)
    assert row["masked_ms"] > 0 < row["plain_ms"]


def test_imports_go_downwards_only() -> None:
    order = [
        "errors",
        "seeds",
        "config",
        "metrics",
        "data",
        "io",
        "nn",
        "growth",
        "train",
        "models",
        "methods",
        "bench",
    ]
    order += ["report", "cli"]
    source = ROOT / "src" / "grown"
    for path in source.rglob("*.py"):
        part = path.relative_to(source).parts[0].removesuffix(".py")
        if part.startswith("__"):
            continue
        for found in re.findall(r"^\s*from grown\.(\w+)", path.read_text(), re.MULTILINE):
            assert order.index(found) <= order.index(part), f"{path.name} imports {found}"
