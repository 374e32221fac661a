"""Forgetting on request: a task's record and its own kernels go, everything else stays to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import grown
from forging import GOLDEN, golden
from grown.methods.base import probe
from grown.methods.grown.removal import remove
from grown.methods.verify import verify
from helpers import call, make_task


@pytest.mark.parametrize("kind", ["grown", "soft", "bf16"])
@pytest.mark.parametrize("task", ["t0", "t1", "t2"])
def test_the_others_stay_identical_and_nothing_of_the_task_stays_alone(
    kind: str, task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m"
    path.write_bytes(golden(kind))
    before = grown.load(path)
    number = before.records[task].number
    others = [name for name in before.tasks if name != task]
    assert call("remove", str(path), "--task", task) == 0
    text = capsys.readouterr().out
    after = grown.load(path)
    assert after.tasks == others
    for name in others:
        assert torch.equal(after.records[name].probe, before.records[name].probe)
        assert torch.equal(probe(after.extract(name), (1, 8, 8)), probe(before.extract(name), (1, 8, 8)))
    assert verify(path).good
    stays = 0
    for name, bank in after.banks.items():
        used = torch.zeros(bank.shape, dtype=torch.bool)
        for other in others:
            rows, columns = bank.view(after.widths, after.records[other].widths)
            used[rows[:, None], columns] |= after.records[other].active[name]
        mine = bank.owner == number
        assert not bool((mine & ~used).any())  # what is left of it, others use
        assert bool((bank.kernels[bank.owner == 0] == 0).all())  # what was freed is erased
        stays += int(mine.sum())
    owned = sum(int((bank.owner == number).sum()) for bank in before.banks.values())
    assert f"{owned - stays:,} kernels;" in text
    assert (f"{stays:,} of its kernels" in text) == (stays > 0)
    assert path.stat().st_size < len(golden(kind))
    assert task.encode() not in path.read_bytes()


def test_reuse_is_reported_by_layer_and_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("remove", str(GOLDEN / "v2-grown.safetensors"), "--task", "t0", "--out", str(tmp_path / "m")) == 0
    text = capsys.readouterr().out
    assert "used by: t1 (53), t2 (58)" in text  # as `grown inspect` counts reuse
    assert "by layer: stem" in text
    assert (GOLDEN / "v2-grown.safetensors").read_bytes() == golden()


def test_a_kernel_goes_with_its_last_user(tmp_path: Path) -> None:
    """What a removed task left because another used it goes when that one goes."""
    path = tmp_path / "m"
    path.write_bytes(golden())
    learner = grown.load(path)
    remove(learner, "t0")
    first = sum(int((bank.owner == 1).sum()) for bank in learner.banks.values())
    assert first > 0
    remove(learner, "t2")
    second = sum(int((bank.owner == 1).sum()) for bank in learner.banks.values())
    assert 0 < second < first
    learner.save(path)
    assert verify(path).good


def test_a_removed_name_can_be_learned_again_under_a_new_number(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(golden())
    learner = grown.load(path)
    kept = {name: probe(learner.extract(name), (1, 8, 8)) for name in ("t0", "t1")}
    remove(learner, "t2")
    learner.save(path)
    learner = grown.load(path)
    learner.learn(make_task("t2", classes=4))
    assert learner.records["t2"].number == 4
    learner.save(path)
    assert verify(path).good
    for name, logits in kept.items():
        assert torch.equal(probe(grown.load(path).extract(name), (1, 8, 8)), logits)


def test_what_cannot_be_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m"
    path.write_bytes(golden())
    for arguments, words in (
        ([str(path), "--task", "t9"], "unknown task 't9'"),
        ([str(path)], "--task"),
        ([str(tmp_path / "absent"), "--task", "t0"], "no such file"),
        ([str(GOLDEN / "v2-scratch.safetensors"), "--task", "t0"], "one of 'scratch'"),
        ([str(path), "--task", "t0", "--out", str(tmp_path / "no" / "m")], "No such file or directory"),
    ):
        assert call("remove", *arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert path.read_bytes() == golden()
    for task in ("t0", "t1"):
        assert call("remove", str(path), "--task", task) == 0
    capsys.readouterr()
    before = path.read_bytes()
    assert call("remove", str(path), "--task", "t2") == 2
    assert "is the only one" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_model_in_memory_that_lost_a_task_is_saved_as_one_that_was_loaded(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(golden("grown"))
    kept = grown.load(tmp_path / "m")
    kept.save(tmp_path / "before")  # its picked bits are packed by now
    remove(kept, "t0")
    kept.save(tmp_path / "kept")
    fresh = grown.load(tmp_path / "m")
    remove(fresh, "t0")
    fresh.save(tmp_path / "fresh")
    assert (tmp_path / "kept").read_bytes() == (tmp_path / "fresh").read_bytes()
