"""`grown verify` finds every flipped bit, says where it is, and never passes another machine's arithmetic silently."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import grown
from forging import KINDS, LATER, flip, flip_in_file, forge, golden
from grown.io import arithmetic, container
from grown.io.state import State
from grown.methods.base import probe
from grown.methods.grown.algebra import breaches
from grown.methods.verify import verify, verify_content
from helpers import call

NAMES = [(kind, name) for kind in (*KINDS, *LATER) for name in container.parse(golden(kind)).tensors]


@pytest.mark.parametrize("kind", [*KINDS, *LATER])
def test_a_good_file_is_good(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.safetensors"
    # Written here, so that it is this machine's arithmetic whatever machine wrote the golden file.
    path.write_bytes(recomputed(golden(kind)))
    assert call("verify", str(path)) == 0
    text = capsys.readouterr().out
    count = len(grown.load(path).tasks)
    assert f"probes: {count} bit for bit\n" in text
    assert "everything agrees" in text


@pytest.mark.parametrize(("kind", "name"), NAMES, ids=[f"{kind}-{name}" for kind, name in NAMES])
def test_every_flipped_bit_is_found_and_named(kind: str, name: str) -> None:
    data = golden(kind)
    bits = 8 * container.parse(data).tensors[name].nbytes
    draw = torch.Generator().manual_seed(len(name))
    for bit in {0, bits - 1, *torch.randint(bits, (6,), generator=draw).tolist()} if bits else ():
        content = container.parse(flip_in_file(data, name, bit))
        assert content.damaged == (name,)
        assert not content.metadata_damaged


def test_a_flipped_bit_is_reported_with_its_task_and_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.safetensors"
    for name, words in (
        ("bank/side/kernels", "layer side: kernels: the digest differs"),
        ("bank/side/owners", "layer side: owners: the digest differs"),
        ("task/2/picked", "task 't1': picked bits: the digest differs"),
        ("task/2/kept", "task 't1': kept channels: the digest differs"),
        ("task/3/own", "task 't2': norms and biases: the digest differs"),
        ("task/3/head", "task 't2': head: the digest differs"),
        ("task/1/probe", "task 't0': stored probe: the digest differs"),
    ):
        path.write_bytes(flip_in_file(golden(), name, 5))
        assert call("verify", str(path)) == 1
        assert words in capsys.readouterr().out
        with pytest.raises(grown.FileError, match=f"{name} is damaged"):
            grown.load(path)


def test_flipped_metadata_are_found() -> None:
    data = golden().replace(b'\\"c0\\"', b'\\"d0\\"', 1)
    assert data != golden()
    assert verify_content(container.parse(data)).differences == ["metadata: their digest differs"]


def recomputed(data: bytes) -> bytes:
    """The same model with probes of this machine."""

    def change(tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        learner = grown.METHODS[meta["method"]](None)
        learner.load_state(State(dict(tensors), meta))
        for entry in meta["tasks"]:
            tensors[f"task/{entry['number']}/probe"] = probe(learner.network(entry["name"]), (1, 8, 8))
            entry["arithmetic"] = arithmetic.here()

    return forge(data, change)


def altered(name: str, bit: int) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:  # noqa: ARG001
        tensors[name] = flip(tensors[name], bit)

    return change


@pytest.mark.parametrize(
    ("kind", "name", "bit", "words"),
    [
        ("grown", "bank/stem/kernels", 30, "its logits differ"),
        ("grown", "bank/hidden/kernels", 30, "its logits differ"),
        ("grown", "bank/stem/owners", 0, "kernels"),
        ("grown", "bank/hidden/owners", 9, "structure"),
        ("grown", "task/3/picked", 0, "task 't2'"),
        ("grown", "task/2/kept", 1, "structure"),
        ("grown", "task/1/own", 30, "task 't0': its logits differ"),
        ("grown", "task/2/head", 31, "task 't1': its logits differ"),
        ("grown", "task/2/probe", 0, "task 't1': its logits differ"),
        ("soft", "task/2/soft", 30, "task 't1'"),
        ("scratch", "task/2/kernels", 30, "task 't1': its logits differ"),
        ("scratch", "task/1/head", 31, "task 't0': its logits differ"),
        ("bf16", "bank/side/kernels", 14, "its logits differ"),
        ("joint", "joint/kernels", 30, "task 't0': its logits differ"),
        ("joint", "joint/own", 30, "its logits differ"),
        ("cpg", "bank/hidden/kernels", 30, "its logits differ"),
        ("cpg", "bank/hidden/owners", 3, "weights have an owner"),
        ("cpg", "task/2/picked", 0, "task 't1': its logits differ"),
        ("cpg", "task/1/own", 30, "task 't0': its logits differ"),
        ("packnet", "shared/kernels", 30, "its logits differ"),
        ("packnet", "shared/owners", 3, "structure"),
        ("wsn", "shared/kernels", 30, "its logits differ"),
        ("wsn", "task/1/picked", 300, "structure"),
        ("piggyback", "shared/kernels", 30, "task 't0': its logits differ"),
        ("piggyback", "task/2/picked", 9, "task 't1': its logits differ"),
        ("ksm", "task/2/picked", 9, "structure"),
        ("ksm", "task/2/soft", 30, "structure"),
        ("supsup", "task/1/picked", 9, "task 't0': its logits differ"),
        ("grow", "bank/hidden/kernels", 30, "its logits differ"),
        ("grow", "bank/stem/owners", 0, "kernels"),
        ("grow", "task/2/kept", 1, "task 't1'"),
        ("pnn", "task/1/kernels", 30, "task 't1': its logits differ"),
        ("pnn", "task/2/laterals", 30, "task 't1': its logits differ"),
        ("adapter", "shared/kernels", 30, "task 't1': its logits differ"),
        ("adapter", "task/2/factors", 30, "task 't1': its logits differ"),
    ],
)
def test_a_bit_flipped_with_its_digest_is_found_by_structure_owners_or_probe(
    kind: str, name: str, bit: int, words: str
) -> None:
    content = container.parse(forge(recomputed(golden(kind)), altered(name, bit)))
    assert not content.damaged
    assert not content.metadata_damaged
    found = verify_content(content).differences
    assert found
    assert any(words in line for line in found), found


def test_every_owner_changed_with_its_digest_is_found() -> None:
    """Owners decide who may pick what: none can be changed without breaking a count, whatever the probe says."""
    data = golden()
    for name, tensor in container.parse(data).tensors.items():
        for bit in range(0, 8 * tensor.nbytes, 3) if name.endswith("/owners") else ():
            content = container.parse(forge(data, altered(name, bit)))
            assert verify_content(content).differences, (name, bit)


def test_another_machines_arithmetic_is_said_and_held_to_a_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.safetensors"

    def shifted(by: float, written: str | None) -> bytes:
        def change(tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
            tensors["task/2/probe"] += by
            meta["tasks"][1]["arithmetic"] = written

        return forge(recomputed(golden()), change)

    for written, words in (
        ("torch 9.9, abacus", "written with torch 9.9, abacus, and this is torch"),
        (None, "not say"),
    ):
        path.write_bytes(shifted(2e-6, written))
        assert call("verify", str(path)) == 0
        text = capsys.readouterr().out
        assert words in text
        assert "2 bit for bit, 1 to a tolerance because arithmetic differs" in text
        path.write_bytes(shifted(2e-2, written))
        assert call("verify", str(path)) == 1
        assert "task 't1': its logits differ from its stored probe by up to 0.02" in capsys.readouterr().out
    path.write_bytes(shifted(2e-6, arithmetic.here()))
    assert len(verify(path).differences) == 1  # the same shift, where bits must agree


def test_bad_input_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("hello there, this is no model")
    (tmp_path / "cut").write_bytes(golden()[:-1])
    for name in ("absent", "text", "cut", "."):
        assert call("verify", str(tmp_path / name)) == 2
        error = capsys.readouterr().err
        assert error.startswith("grown: ")
        assert error.count("\n") == 1


def loaded(kind: str = "grown") -> grown.Learner:
    content = container.parse(golden(kind))
    learner = grown.Learner(None)
    learner.load_state(State(content.tensors, content.meta))
    assert breaches(learner) == []
    return learner


def test_each_rule_between_owners_and_records_is_checked() -> None:
    learner = loaded()
    learner.records["t1"].active["hidden"][:] = True
    assert "neither it nor an earlier task owns" in breaches(learner)[0]

    learner = loaded()
    learner.records["t0"].active["stem"][:] = False
    assert "task 't0', layer stem: it owns a kernel that it does not use" in breaches(learner)

    learner = loaded()
    first, second = learner.records["t1"], learner.records["t2"]
    first.widths, second.widths = second.widths, first.widths
    first.active, second.active = second.active, first.active
    first.kept, second.kept = second.kept, first.kept
    assert any("it sees fewer channels of" in line for line in breaches(learner))
    assert any("outside the channels that it sees" in line for line in breaches(learner))

    learner = loaded()
    learner.records["t0"].new_kernels["grown"] += 1
    assert "its record counts" in breaches(learner)[0]

    learner = loaded()
    learner.records["t2"].kept = [torch.zeros_like(flags) for flags in learner.records["t2"].kept]
    assert "of a channel that it does not keep" in breaches(learner)[0]

    learner = loaded()
    del learner.records["t2"]
    assert "belong to task number 3, which is gone, for nobody" in breaches(learner)[0]

    learner = loaded()
    learner.banks["side"]._weight[learner.banks["side"].owner == 0] = 1.0
    assert breaches(learner) == ["layer side: a kernel that nobody owns is not zero"]
