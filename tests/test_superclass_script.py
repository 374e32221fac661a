"""The script that makes the rows of the Superclass table: what it asks for, in which order, what it leaves alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import superclass
from helpers import write_result


def test_equal_bytes_are_equal() -> None:
    for share in (0.1, 0.3):
        size = share * 4 * 33_584_832
        assert superclass.scratch_bytes(superclass.width_for(size)) == pytest.approx(size, rel=0.05)


def test_rows_run_in_the_order_in_which_they_need_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superclass, "HERE", tmp_path / "results")
    asked: list[list[str]] = []

    class Finished:
        """A run that is over as soon as it began."""

        def __init__(self, words: list[str], **_: Any) -> None:
            asked.append(words)
            out = Path(words[words.index("--out") + 1])
            method = words[words.index("--method") + 1] if "--method" in words else "grown"
            tasks = [{"grew": True, "val": 80.0}, {"grew": False, "val": 82.0}]
            write_result(out.parent, method, "default", tasks=tasks, bytes={"total": int(0.2 * 4 * 33_584_832)})
            written = next(out.parent.glob("*.json"))
            out.mkdir()
            result = json.loads(written.read_text())
            result["seconds"] = {"total": 1.0, "training": 1.0}
            (out / "result.json").write_text(json.dumps(result))
            written.unlink()

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(superclass.subprocess, "Popen", Finished)
    (tmp_path / "work").mkdir()
    arguments = argparse.Namespace(
        data=Path("data"), work=tmp_path / "work", rows=["equal", "grown", "targets"], seeds=[0, 1], jobs=2,
        device="cpu", deadline=60.0,
    )  # fmt: skip
    superclass.run_all(arguments)
    names = [Path(words[words.index("--out") + 1]).name for words in asked]
    assert names == ["targets-0", "targets-1", "grown-0", "grown-1", "equal-0", "equal-1"]
    grown = asked[2]
    assert grown[grown.index("--target") + 1] == str(superclass.path_of("targets", 0))
    width = float(asked[4][asked[4].index("--width") + 1])
    assert superclass.scratch_bytes(width) == pytest.approx(0.2 * 4 * 33_584_832, rel=0.05)
    asked.clear()
    superclass.run_all(arguments)  # all is there
    assert asked == []
