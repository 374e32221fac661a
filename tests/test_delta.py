"""Delta files: close to what was added, and byte for byte the newer model when put onto the older."""

from __future__ import annotations

import copy
import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import grown
from forging import flip, golden
from grown.errors import FileError
from grown.io import container
from grown.io.versions import DELTA
from grown.methods.grown import delta
from grown.methods.grown.removal import remove
from grown.methods.verify import verify_content
from helpers import Branchy, call, make_task, quick, shake


@functools.cache
def stages(soft: bool = False) -> tuple[bytes, ...]:
    """One model after each of four tasks, of which the second and fourth add channels."""
    torch.manual_seed(0)
    sizes = {"seed_size": 1.0, "task_size": 0.5, "step_size": 0.3, "max_size": 3.0}
    learner = grown.Learner(Branchy(), quick(growth="open", soft_select=soft, **sizes))
    found = []
    for number in range(4):
        stage = learner.open(make_task(f"t{number}"))
        if number % 2:
            stage.expand()
        shake(stage, seed=number)
        stage.commit(target=50.0)
        state = learner.state()
        found.append(container.dump(state.tensors, state.meta))
    return tuple(found)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 2), (2, 3), (0, 3)])
def test_a_delta_gives_the_newer_model_byte_for_byte(
    old: int, new: int, soft: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, d, c = (tmp_path / name for name in "abdc")
    a.write_bytes(stages(soft)[old])
    b.write_bytes(stages(soft)[new])
    assert call("diff", str(a), str(b), "--out", str(d)) == 0
    assert f"t{new}" in capsys.readouterr().out
    assert call("apply", str(a), str(d), "--out", str(c)) == 0
    assert f"verified: {new + 1} tasks bit for bit" in capsys.readouterr().out
    assert c.read_bytes() == b.read_bytes()
    assert call("apply", str(a), str(d), "--out", str(a)) == 0  # in place
    assert a.read_bytes() == b.read_bytes()


def test_a_delta_is_as_large_as_what_was_added() -> None:
    for old, new in ((0, 1), (1, 2), (2, 3)):
        one, two = container.parse(stages()[old]), container.parse(stages()[new])
        data = delta.diff(one, two)
        kernels = sum(t.nbytes for name, t in two.tensors.items() if name.endswith("/kernels"))
        kernels -= sum(t.nbytes for name, t in one.tensors.items() if name.endswith("/kernels"))
        record = sum(t.nbytes for name, t in two.tensors.items() if name.startswith(f"task/{new + 1}/"))
        places = sum(8 * t.shape[1] for name, t in two.tensors.items() if name.endswith("/owners"))
        assert len(data) <= kernels + record + places // 8 + 2600  # one bit a free kernel; names, digests, settings
        assert len(data) < 0.6 * len(stages()[new])


def test_a_delta_that_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, d = (tmp_path / name for name in "abd")
    a.write_bytes(stages()[0])
    b.write_bytes(stages()[2])
    assert call("diff", str(a), str(b), "--out", str(d)) == 0
    for other in (stages()[1], stages(soft=True)[0], golden()):
        (tmp_path / "other").write_bytes(other)
        assert call("apply", str(tmp_path / "other"), str(d), "--out", str(tmp_path / "c")) == 2
        error = capsys.readouterr().err
        assert "does not fit" in error
        assert error.count("\n") == 1
    assert call("apply", str(a), str(b), "--out", str(tmp_path / "c")) == 2
    assert "not a delta of this library" in capsys.readouterr().err
    assert call("verify", str(d)) == 2
    assert not (tmp_path / "c").exists()


def forged(change: Any) -> container.Content:
    """A delta from the first to the third model with something changed and its digests made right."""
    content = container.parse(delta.diff(*(container.parse(stages()[i]) for i in (0, 2))), DELTA)
    tensors, meta = dict(content.tensors), copy.deepcopy(content.meta)
    change(tensors, meta)
    return container.parse(container.dump(tensors, meta, DELTA), DELTA)


def without(name: str) -> Any:
    return lambda tensors, _: tensors.pop(name)


FORGERIES: dict[str, tuple[Any, str]] = {
    "kernel": (lambda t, _: t.update(kernels=flip(t["kernels"], 3)), "does not give the model"),
    "fewer kernels": (lambda t, _: t.update(kernels=t["kernels"][:-1]), "do not go with layer"),
    "more kernels": (lambda t, _: t.update(kernels=torch.cat([t["kernels"], torch.zeros(1)])), "left over"),
    "bf16": (lambda t, _: t.update(kernels=t["kernels"].bfloat16()), "do not go with layer"),
    "owners": (lambda t, _: t.update(owners=t["owners"][:, :-1]), "numbers are a table"),
    "no owners": (without("owners"), "lacks owners"),
    "one more": (lambda t, _: t.update(more=torch.zeros(1)), "holds more"),
    "an old task": (lambda _, m: m["tasks"].insert(0, {**m["tasks"][0], "number": 1}), "number must be"),
    "an old tensor": (lambda t, _: t.update({"task/1/head": t["task/2/head"].clone()}), "holds task/1/head"),
    "graph": (lambda _, m: m["changed"].update(graph=[]), "cannot change"),
    "tasks": (lambda _, m: m["changed"].update(tasks=[]), "cannot change"),
    "changed": (lambda _, m: m.update(changed=[]), "cannot change"),
    "narrower": (lambda _, m: m["changed"].update(widths=[1, 1, *m["changed"]["widths"][2:]]), "takes channels away"),
    "absurd": (lambda _, m: m["changed"].update(widths=[1, 10**6, *m["changed"]["widths"][2:]]), "bytes of memory"),
    "digests": (lambda _, m: m["changed"].update(digests={}), "cannot change"),
    "new": (lambda _, m: m.update(new="x"), "does not give the model"),
    "task entry": (lambda _, m: m["tasks"][0].update(classes=["a", "b"]), "does not give the model"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(FORGERIES))
def test_a_forged_delta_is_refused(case: str) -> None:
    change, words = FORGERIES[case]
    with pytest.raises(FileError, match=words):
        delta.apply(container.parse(stages()[0]), forged(change))


def test_a_forged_delta_with_its_promise_forged_too_is_found_by_the_probe() -> None:
    """Who changes kernels and all digests cannot change an old task, and the new one does not answer as it did."""
    old = container.parse(stages()[0])

    def change(tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        tensors["kernels"] = -tensors["kernels"]
        meta["new"] = promise

    # What such a delta gives, and so must promise, is seen by letting its first promise fail.
    made: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        dump = container.dump
        patch.setattr(delta.container, "dump", lambda *parts: made.append(dump(*parts)) or made[-1])
        promise = ""
        with pytest.raises(FileError):
            delta.apply(old, forged(change))
    promise = hashlib.sha256(made[-1]).hexdigest()
    data = delta.apply(old, forged(change))
    before, after = container.parse(stages()[0]), container.parse(data)
    for name in before.tensors:
        if name.startswith("task/"):
            assert torch.equal(before.tensors[name], after.tensors[name])
    found = verify_content(after)
    assert found.exact == ["t0"]
    assert any("task 't1': its logits differ" in line for line in found.differences)


def test_models_that_do_not_follow_each_other_have_no_delta(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a", tmp_path / "b"

    def refused(old: bytes, new: bytes, words: str) -> None:
        a.write_bytes(old)
        b.write_bytes(new)
        assert call("diff", str(a), str(b), "--out", str(tmp_path / "d")) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
        assert not (tmp_path / "d").exists()

    refused(stages()[1], stages()[0], "task 't1' is missing")
    refused(stages()[1], stages()[1], "no task that OLD lacks")
    refused(stages(soft=True)[0], stages()[1], "is missing or another one")
    refused(golden("scratch"), golden("scratch"), "only grown's have deltas")
    refused(stages()[0], golden("finetune"), "only grown's have deltas")

    content = container.parse(stages()[1])
    content.tensors["bank/left/kernels"] = -content.tensors["bank/left/kernels"]
    refused(stages()[0], container.dump(content.tensors, content.meta), "layer left has other kernels")
    content = container.parse(stages()[1])
    content.tensors["task/2/head"] = -content.tensors["task/2/head"]
    refused(stages()[0], container.dump(content.tensors, content.meta), "task 't1': its logits differ")
    flipped = bytearray(stages()[1])
    flipped[-50] ^= 1
    refused(stages()[0], bytes(flipped), "is damaged")


def test_a_delta_onto_a_file_of_version_1(tmp_path: Path) -> None:
    """A device with an old file gets a new task; what it then has is of the present version."""
    (tmp_path / "old").write_bytes(golden("grown", version=1))
    learner = grown.load(tmp_path / "old")
    learner.learn(make_task("t3"))
    learner.save(tmp_path / "new")
    old, new = (container.parse((tmp_path / name).read_bytes()) for name in ("old", "new"))
    data = delta.diff(old, new)
    assert delta.apply(old, container.parse(data, DELTA)) == (tmp_path / "new").read_bytes()
    # A newer model of version 1 cannot be given byte for byte by a release that writes version 2.
    fewer = grown.load(tmp_path / "old")
    remove(fewer, "t2")
    fewer.next_number = 3
    fewer.save(tmp_path / "fewer")
    with pytest.raises(FileError, match="NEW has format 1"):
        delta.diff(container.parse((tmp_path / "fewer").read_bytes()), old)


def test_bf16_kernels_travel_as_they_are() -> None:
    def rounded(data: bytes) -> container.Content:
        content = container.parse(data)
        tensors = {
            name: tensor.bfloat16() if name.endswith("/kernels") else tensor for name, tensor in content.tensors.items()
        }
        return container.parse(container.dump(tensors, content.meta))

    old, new = rounded(stages()[1]), rounded(stages()[3])
    data = delta.diff(old, new)
    full = delta.diff(container.parse(stages()[1]), container.parse(stages()[3]))
    assert len(data) < 0.75 * len(full)
    with pytest.raises(FileError, match="has other kernels"):
        delta.diff(container.parse(stages()[1]), new)
