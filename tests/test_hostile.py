"""A file from a stranger: one clear line, little memory, little time, and nothing of it is ever run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import grown
from forging import forge, golden, put_together
from fuzzing import Largest
from grown.errors import FileError, TemplateError
from grown.io import container, strict_json
from grown.io.state import State
from grown.methods import verify
from grown.models import BACKBONES, backbone
from grown.nn import limits, rules, trace
from grown.nn.graph import OPERATIONS, Graph
from grown.nn.groups import find_channels

Meta = dict[str, Any]


def load(data: bytes) -> grown.Learner:
    content = container.parse(data)
    learner = grown.METHODS[content.meta["method"]](None)
    learner.load_state(State(content.tensors, content.meta))
    return learner


def refuse(path: Path, data: bytes, words: str) -> None:
    """One clear line within a second."""
    path.write_bytes(data)
    began = time.perf_counter()
    with pytest.raises(FileError, match=words) as caught:
        grown.load(path)
    assert time.perf_counter() - began < 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))


def entry(**changes: Any) -> Meta:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "shorter than"),
    "seven bytes": (b"\x00" * 7, "shorter than"),
    "gigabyte header": ((2**30).to_bytes(8, "little") + b"{}", "at most 16,777,216 are read"),
    "endless header": (b"\xff" * 8 + b"{}", "at most"),
    "header past the end": ((100).to_bytes(8, "little") + b"{}", "but 2 follow"),
    "no object": (put_together(b"[]", b""), "no JSON object"),
    "not UTF-8": (put_together(b'{"\xc3(":1}', b""), "UTF-8"),
    "astral": (put_together('{"\U0001f600":1}', b""), "basic plane"),
    "key twice": (put_together('{"a":{"dtype":"U8","dtype":"U8"}}', b""), "'dtype' twice"),
    "tensor twice": (
        put_together('{"a":' + json.dumps(entry()) + ',"a":' + json.dumps(entry()) + "}", b"x" * 8),
        "twice",
    ),
    "deep": (put_together('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", b""), "nested more than"),
    "deeper than ours": (put_together('{"a":' + "[" * 20 + "]" * 20 + "}", b""), "nested more than"),
    "many values": (put_together('{"a":[' + "0," * 300_000 + "0]}", b""), "more than 250,000 values"),
    "NaN": (put_together('{"a":NaN}', b""), "holds NaN"),
    "infinity": (put_together('{"a":1e999}', b""), "too large"),
    "long number": (put_together('{"a":' + "9" * 5000 + "}", b""), "5000 digits"),
    "strange type": (put_together({"a": entry(dtype="F128")}, b"x" * 8), "'F128'. Choices"),
    "unhashable type": (put_together({"a": entry(dtype=["F32"])}, b"x" * 8), "its type is"),
    "negative shape": (put_together({"a": entry(shape=[-2])}, b"x" * 8), "its shape is"),
    "true shape": (put_together({"a": entry(shape=[True])}, b"x" * 8), "its shape is"),
    "float shape": (put_together({"a": entry(shape=[2.0])}, b"x" * 8), "its shape is"),
    "absurd shape": (put_together({"a": entry(shape=[2**40] * 8)}, b"x" * 8), "needs"),
    "many axes": (put_together({"a": entry(shape=[1] * 9)}, b"x" * 8), "its shape is"),
    "shape is text": (put_together({"a": entry(shape="ab")}, b"x" * 8), "its shape is"),
    "wrong length": (put_together({"a": entry(shape=[3])}, b"x" * 8), "needs 12 bytes, but has 8"),
    "backwards": (put_together({"a": entry(data_offsets=[8, 0])}, b"x" * 8), "has -8"),
    "past the end": (put_together({"a": entry(data_offsets=[8, 16])}, b"x" * 8), "gap"),
    "three offsets": (put_together({"a": entry(data_offsets=[0, 8, 8])}, b"x" * 8), "data_offsets is"),
    "overlap": (put_together({"a": entry(), "b": entry()}, b"x" * 8), "overlaps"),
    "half overlap": (put_together({"a": entry(), "b": entry(data_offsets=[4, 12])}, b"x" * 12), "overlaps"),
    "gap": (put_together({"a": entry(), "b": entry(data_offsets=[12, 20])}, b"x" * 20), "gap"),
    "too much": (put_together({"a": entry()}, b"x" * 9), "take 8 bytes, but 9 follow"),
    "too little": (put_together({"a": entry()}, b"x" * 7), "take 8 bytes, but 7 follow"),
    "more keys": (put_together({"a": entry(more=1)}, b"x" * 8), "not dtype, shape"),
    "entry is a list": (put_together({"a": [1]}, b"x" * 8), "not dtype, shape"),
    "traversal": (put_together({"../../etc/passwd": entry()}, b"x" * 8), "a tensor is named"),
    "absolute": (put_together({"/etc/passwd": entry()}, b"x" * 8), "a tensor is named"),
    "control": (put_together({"a\u0000b": entry()}, b"x" * 8), "a tensor is named"),
    "long name": (put_together({"a" * 301: entry()}, b"x" * 8), "a tensor is named"),
    "metadata is a list": (put_together({"__metadata__": []}, b""), "table of texts"),
    "metadata of numbers": (put_together({"__metadata__": {"grown": 1}}, b""), "table of texts"),
    "no metadata": (put_together({"a": entry()}, b"x" * 8), "lack 'grown'"),
    "other metadata": (put_together({"__metadata__": {"format": "pt"}, "a": entry()}, b"x" * 8), "lack 'grown'"),
    "metadata no JSON": (put_together({"__metadata__": {"grown": "{"}}, b""), "not readable"),
    "metadata key twice": (put_together({"__metadata__": {"grown": '{"a":1,"a":2}'}}, b""), "'a' twice"),
    "metadata deep": (put_together({"__metadata__": {"grown": "[" * 50_000}}, b""), "nested more than"),
    "another format": (put_together({"__metadata__": {"grown": '{"format":"x"}'}}, b""), "not a model of this"),
    "version 0": (put_together({"__metadata__": {"grown": '{"format":"grown-model","version":0}'}}, b""), "never was"),
    "version true": (
        put_together({"__metadata__": {"grown": '{"format":"grown-model","version":true}'}}, b""),
        "never was",
    ),
    "version is a list": (
        put_together(
            {"__metadata__": {"grown": json.dumps({"format": "grown-model", "version": ["x" * 99] * 99})}}, b""
        ),
        "never was",
    ),
    "no method": (
        put_together({"__metadata__": {"grown": '{"format":"grown-model","version":2,"digests":{}}'}}, b""),
        "which method",
    ),
    "half a character": (put_together({"__metadata__": {"grown": '{"a":"\\ud800"}'}}, b""), "half a character"),
    "long text": (put_together({"__metadata__": {"grown": json.dumps({"a": "x" * 5000})}}, b""), "5,000 characters"),
}


@pytest.mark.parametrize("case", sorted(HEADERS))
def test_a_hostile_header_is_refused(case: str, tmp_path: Path) -> None:
    data, words = HEADERS[case]
    refuse(tmp_path / "m.safetensors", data, words)


def node(meta: Meta, op: str) -> Meta:
    return next(found for found in meta["graph"] if found["op"] == op)


def set_node(op: str, /, **changes: Any) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(_: dict[str, Tensor], meta: Meta) -> None:
        node(meta, op).update(changes)

    return change


def set_attr(op: str, **changes: Any) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(_: dict[str, Tensor], meta: Meta) -> None:
        node(meta, op)["attrs"].update(changes)

    return change


def set_meta(**changes: Any) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(_: dict[str, Tensor], meta: Meta) -> None:
        meta.update(changes)

    return change


def set_task(**changes: Any) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(_: dict[str, Tensor], meta: Meta) -> None:
        meta["tasks"][1].update(changes)

    return change


def set_tensor(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(tensors: dict[str, Tensor], _: Meta) -> None:
        tensors[name] = make(tensors[name])

    return change


def rename(old: str, new: str) -> Callable[[dict[str, Tensor], Meta], None]:
    def change(tensors: dict[str, Tensor], meta: Meta) -> None:
        for found in meta["graph"]:
            found["name"] = new if found["name"] == old else found["name"]
            found["inputs"] = [new if name == old else name for name in found["inputs"]]
        for part in ("kernels", "owners"):
            tensors[f"bank/{new}/{part}".replace("//", "/x/")] = tensors.pop(f"bank/{old}/{part}")
        meta["gains"][new] = meta["gains"].pop(old)

    return change


def widen(tensors: dict[str, Tensor], meta: Meta) -> None:
    """A hundred thousand channels, all free: a bank of which nothing is in the file."""
    group = 1
    meta["widths"][group] = 100_000
    for name in ("stem", "side", "depth", "hidden"):
        tensors[f"bank/{name}/kernels"] = tensors[f"bank/{name}/kernels"][:0]
    sizes = {"stem": 100_000, "side": 100_000**2, "depth": 100_000}
    for name, count in sizes.items():
        tensors[f"bank/{name}/owners"] = torch.zeros((0, (count + 7) // 8), dtype=torch.uint8)


def huge_fixed(_: dict[str, Tensor], meta: Meta) -> None:
    """A layer that is added to a very wide input: as wide itself, before any task was learned."""
    wide = 2**20
    meta["graph"] = [
        {"name": "input", "op": "input", "inputs": [], "attrs": {}, "shape": [wide]},
        {
            "name": "a",
            "op": "linear",
            "inputs": ["input"],
            "attrs": {"in": wide, "out": wide, "bias": False},
            "shape": [wide],
        },
        {"name": "add", "op": "add", "inputs": ["input", "a"], "attrs": {}, "shape": [wide]},
        {"name": "out", "op": "head", "inputs": ["add"], "attrs": {"in": wide, "bias": False}, "shape": [2]},
    ]
    meta["gains"] = {"a": 1.0}


def doubling(_: dict[str, Tensor], meta: Meta) -> None:
    """A branch that is joined with itself, again and again."""
    nodes = [{"name": "input", "op": "input", "inputs": [], "attrs": {}, "shape": [1]}]
    for number in range(22):
        last = nodes[-1]["name"]
        nodes.append(
            {"name": f"c{number}", "op": "cat", "inputs": [last, last], "attrs": {}, "shape": [2 ** (number + 1)]}
        )
    nodes.append(
        {"name": "o", "op": "head", "inputs": ["c21"], "attrs": {"in": 2**22, "bias": False}, "shape": [2]},
    )
    meta["graph"], meta["gains"] = nodes, {}


def crossing(_: dict[str, Tensor], meta: Meta) -> None:
    """Branches of coprime widths that are added crosswise: cut finer and finer."""
    a, b = 4001, 4003
    linear = {"op": "linear", "inputs": ["input"]}
    meta["graph"] = [
        {"name": "input", "op": "input", "inputs": [], "attrs": {}, "shape": [4]},
        {**linear, "name": "a", "attrs": {"in": 4, "out": a, "bias": False}, "shape": [a]},
        {**linear, "name": "b", "attrs": {"in": 4, "out": b, "bias": False}, "shape": [b]},
        {"name": "ab", "op": "cat", "inputs": ["a", "b"], "attrs": {}, "shape": [a + b]},
        {"name": "ba", "op": "cat", "inputs": ["b", "a"], "attrs": {}, "shape": [a + b]},
        {"name": "sum", "op": "add", "inputs": ["ab", "ba"], "attrs": {}, "shape": [a + b]},
        {"name": "out", "op": "head", "inputs": ["sum"], "attrs": {"in": a + b, "bias": False}, "shape": [2]},
    ]
    meta["gains"] = {"a": 1.0, "b": 1.0}


MODELS: dict[str, tuple[Callable[[dict[str, Tensor], Meta], None], str]] = {
    # the graph
    "no graph": (set_meta(graph=[]), "list of 1 to"),
    "graph is text": (set_meta(graph="x"), "list of 1 to"),
    "node is text": (set_meta(graph=["x"]), "malformed"),
    "operation": (set_node("silu", op="system"), "unknown operation 'system'"),
    "attribute missing": (set_node("conv", attrs={}), "needs exactly"),
    "inputs are text": (set_node("silu", inputs="hidden"), "malformed"),
    "attrs are a list": (set_node("silu", attrs=[]), "malformed"),
    "kernel": (set_attr("conv", kernel=[2**31, 2**31]), "kernel must be two whole numbers"),
    "kernel too large": (set_attr("conv", kernel=[4096, 4096]), "exceeds the image"),
    "kernel as text": (set_attr("conv", kernel="33"), "kernel must be"),
    "padding": (set_attr("conv", padding=[4096, 4096], kernel=[4096, 4096]), "padded image is too large"),
    "out": (set_attr("conv", out=10**9), "out must be"),
    "out against shape": (set_attr("conv", out=7), "its shape is"),
    "bias": (set_attr("conv", bias="yes"), "bias must be true or false"),
    "eps": (set_attr("batch_norm", eps=-1), "eps must be"),
    "groups": (set_attr("group_norm", groups=4), "do not divide"),
    "shape": (set_node("conv", shape=[6, 10**6, 10**6]), "its shape is"),
    "input shape": (set_node("input", shape=[2**24, 2**24, 2**24]), "its shape is"),
    "zero shape": (set_node("input", shape=[0]), "its shape is"),
    "code in a name": (rename("stem", 'x", exec("open(1)")) #'), "a layer is named"),
    "name of a method": (rename("stem", "forward"), "a layer is named"),
    "name of a table": (rename("stem", "_modules"), "a layer is named"),
    "dunder": (rename("stem", "__class__"), "a layer is named"),
    "empty name": (rename("stem", ""), "."),
    "deep name": (rename("stem", ".".join("a" * 33)), "a layer is named"),
    "name inside a layer": (rename("stem", "side.weight"), "inside the layer side"),
    "doubling": (doubling, "branches come together"),
    "crossing": (crossing, "joined across each other|joined in more than"),
    "wide input": (huge_fixed, "bytes of memory for"),
    # the model
    "widths": (set_meta(widths=[1, 2]), "list of 3"),
    "negative width": (set_meta(widths=[1, -6, 9]), "whole number from 0"),
    "absurd width": (set_meta(widths=[1, 2**40, 9]), "whole number from 0"),
    "free bank": (widen, "bytes of memory for|does not go with"),
    "width of the input": (set_meta(widths=[2, 6, 9]), "cannot have 2 channels"),
    "next number": (set_meta(next_number=1), "next_number must be"),
    "base": (set_meta(base_parameters="many"), "base_parameters must be"),
    "gains": (set_meta(gains={"stem": 1.0}), "gains do not name"),
    "config": (set_meta(config=[]), "not ours|not a model"),
    "config value": (set_meta(config={"seed_size": -1, "recipe": {}}), "seed_size must be"),
    "tasks": (set_meta(tasks=[]), "it has no task|it lacks|it holds"),
    "task is text": (set_meta(tasks=["x"]), "is not an object"),
    "task number": (set_task(number=1), "number must be"),
    "task number is text": (set_task(number="2"), "number must be"),
    "task name": (set_task(name="t0"), "two tasks are named"),
    "task name is a list": (set_task(name=["t"]), "short printable"),
    "task name rings": (set_task(name="a\x07"), "short printable"),
    "classes": (set_task(classes=["a"]), "two different names"),
    "many classes": (set_task(classes=[str(n) for n in range(50_000)]), "does not go with|floats"),
    "task widths": (set_task(widths=[1, 6, 99]), "but there are"),
    "mean": (set_task(mean=["x"]), "mean must be"),
    "deviation": (set_task(deviation=[0]), "above 0"),
    "target": (set_task(target="x"), "target must be"),
    "grew": (set_task(grew=1), "grew must be"),
    "new kernels": (set_task(new_kernels=3), "is not an object"),
    # the tensors
    "one more tensor": (lambda tensors, _: tensors.update({"more": torch.zeros(3)}), "holds more"),
    "one less": (lambda tensors, _: tensors.__delitem__("task/2/head"), "lacks task/2/head"),
    "kernels of whole numbers": (set_tensor("bank/side/kernels", lambda t: t.to(torch.int32)), "bank/side/kernels is"),
    "kernels of half": (set_tensor("bank/side/kernels", lambda t: t.to(torch.float16)), "bank/side/kernels is"),
    "one kernel for all": (set_tensor("bank/side/kernels", lambda t: t[:1]), "have an owner, but 1 are there"),
    "flat kernels": (set_tensor("bank/side/kernels", lambda t: t.flatten()), "bank/side/kernels is"),
    "kernels of another shape": (set_tensor("bank/side/kernels", lambda t: t.view(-1, 9, 1)), "bank/side/kernels is"),
    "owners in floats": (set_tensor("bank/side/owners", lambda t: t.float()), "bank/side/owners is"),
    "32 planes": (
        set_tensor("bank/side/owners", lambda t: torch.cat([t[:1]] * 32)),
        "at most 31 rows",
    ),
    "owner to come": (set_tensor("bank/side/owners", lambda t: torch.cat([t, t[:1]])), "but 3 were learned"),
    "empty plane": (set_tensor("bank/side/owners", lambda t: torch.cat([t, t[:1] * 0])), "highest bit plane"),
    "picked": (set_tensor("task/2/picked", lambda t: t[:-1]), "bits need"),
    "picked behind the end": (set_tensor("task/2/picked", lambda t: torch.cat([t[:-1], t[-1:] | 128])), "mean nothing"),
    "kept": (set_tensor("task/2/kept", lambda t: torch.cat([t, t])), "task/2/kept is"),
    "nothing kept": (set_tensor("task/2/kept", lambda t: t * 0), "cannot keep|floats"),
    "own": (set_tensor("task/2/own", lambda t: t[:-1]), "needs .* floats"),
    "head": (set_tensor("task/2/head", lambda t: t.double()), "task/2/head is"),
    "probe": (set_tensor("task/2/probe", lambda t: t[:, :2]), "task/2/probe is"),
    "soft": (lambda tensors, _: tensors.update({"task/2/soft": torch.zeros(0)}), "soft values do not go"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What PyTorch imports when it is first asked must not be counted."""
    with Largest():
        load(golden())


@pytest.mark.parametrize("case", sorted(MODELS))
def test_a_hostile_model_is_refused(case: str, tmp_path: Path) -> None:
    change, words = MODELS[case]
    data = forge(golden(), change)
    with Largest() as largest:
        refuse(tmp_path / "m.safetensors", data, words)
    assert largest.bytes <= 2 * len(data)


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(forge(golden(), set_meta(method="pickle")))
    with pytest.raises(grown.ConfigError, match="unknown method 'pickle'"):
        grown.load(tmp_path / "m")


def test_nothing_of_a_file_is_ever_run(tmp_path: Path) -> None:
    """torch.fx writes a network's code with the names of its layers in it."""
    mark = tmp_path / "executed"
    evil = f"x\", exec(\"open('{mark}', 'w')\")) #".replace(".", "\\x2e")
    refuse(tmp_path / "m", forge(golden(), rename("stem", evil)), "a layer is named")
    assert not mark.exists()
    for name in (
        evil,
        'a"',
        "a\n",
        "a\\",
        "a b",
        "",
        "a..b",
        "ﬁ",
        "\U00020000",
        "forward",
        "a.weight.parameters",
        "graph",
    ):
        with pytest.raises(TemplateError, match="names are letters"):
            rules.check_name(name)
    for name in ("layer1.0.conv", "größe", "conv-1", "_private", "7"):
        rules.check_name(name)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_neither_read_nor_written(value: float, tmp_path: Path) -> None:
    data = forge(golden(), set_tensor("task/2/head", lambda t: t.clone().fill_(value)))
    refuse(tmp_path / "m", data, "task/2/head holds NaN or infinity")
    learner = load(golden())
    learner.records["t1"].own["out.weight"][:] = value
    with pytest.raises(FileError, match=r"cannot write .*task/2/head holds NaN"):
        learner.save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == data


def test_every_cut_is_refused(tmp_path: Path) -> None:
    data = golden()
    for length in (0, 1, 8, 9, 100, len(data) // 2, len(data) - 1):
        refuse(tmp_path / "m", data[:length], "not a readable file")
    refuse(tmp_path / "m", data + b"\0", "not a readable file")


def test_reading_takes_no_more_memory_than_the_file() -> None:
    tensors = {"a": torch.zeros(2**20), "b": torch.zeros(2**18, dtype=torch.bfloat16)}
    data = container.dump(tensors, {"method": "grown"})
    with Largest() as largest:
        container.parse(data)
    assert largest.bytes == 4 * 2**20


def test_kernels_may_be_bf16(tmp_path: Path) -> None:
    learner = load(golden())
    for bank in learner.banks.values():
        bank.restore(bank.owner, bank.kernels[bank.owner > 0].bfloat16().float())

    def change(tensors: dict[str, Tensor], _: Meta) -> None:
        for name in list(tensors):
            if name.endswith("/kernels"):
                tensors[name] = tensors[name].bfloat16()

    (tmp_path / "m").write_bytes(forge(golden(), change))
    loaded = grown.load(tmp_path / "m")
    x = torch.randn(3, 1, 8, 8)
    for task in learner.tasks:
        assert torch.equal(loaded.extract(task)(x), learner.extract(task)(x))
    rival = forge(golden("scratch"), change)
    assert load(rival).network("t0").stem.weight.dtype == torch.float32


def test_rules_name_every_attribute_of_every_operation() -> None:
    for op, names in OPERATIONS.items():
        assert set(rules.ATTRIBUTES.get(op, {})) == set(names), op


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_keeps_the_rules_of_a_strangers_graph(name: str) -> None:
    graph = trace.trace(backbone(name, channels=3, width=0.25, image=32), (3, 32, 32))
    limits.check_branches(graph)
    assert Graph.from_json(json.loads(strict_json.write(graph.to_json()))) == graph


SHAPES: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 7, 8)),
    (nn.MaxPool2d((2, 3), (1, 2), dilation=2), (2, 9, 11)),
    (nn.AvgPool2d(2, 2, ceil_mode=True), (2, 7, 5)),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 6, 6)),
    (nn.AdaptiveAvgPool2d((None, 2)), (2, 7, 5)),
    (nn.AdaptiveMaxPool2d(3), (2, 7, 5)),
    (nn.Conv2d(2, 3, 4, padding="same", dilation=2), (2, 9, 8)),
    (nn.Conv2d(2, 3, (1, 4), padding="valid"), (2, 9, 8)),
    (nn.Conv2d(2, 3, 3, 2, padding=(2, 1), padding_mode="reflect"), (2, 9, 8)),
    (nn.Conv2d(2, 3, 3, padding=8, padding_mode="circular"), (2, 9, 8)),
    (nn.Conv2d(2, 2, 5, 3, 2, dilation=2, groups=2), (2, 9, 13)),
    (nn.LocalResponseNorm(3), (2, 4, 4)),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_shapes_are_pytorchs(number: int) -> None:
    """The rules compute what PyTorch does: tracing compares every node's shape with the rule's."""
    layer, shape = SHAPES[number]
    network = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3))
    network(torch.zeros(1, *shape))
    graph = trace.trace(network, shape)
    assert graph.nodes[1].shape == tuple(layer(torch.zeros(1, *shape)).shape[1:])


def test_sorting_out_branches_is_quick_at_the_limit() -> None:
    """The largest graph that the limits allow: additions of concatenations, as many as fit."""
    nodes: list[Meta] = [{"name": "input", "op": "input", "inputs": [], "attrs": {}, "shape": [4]}]
    for number in range(64):
        attrs = {"in": 4, "out": 2, "bias": False}
        nodes.append({"name": f"l{number}", "op": "linear", "inputs": ["input"], "attrs": attrs, "shape": [2]})
    names = [f"l{number}" for number in range(64)]
    for number in range(120):
        turned = names[number % 64 :] + names[: number % 64]
        nodes.append({"name": f"c{number}", "op": "cat", "inputs": turned, "attrs": {}, "shape": [128]})
    for number in range(100):
        both = [f"c{number}", f"c{number + 1}"]
        nodes.append({"name": f"a{number}", "op": "add", "inputs": both, "attrs": {}, "shape": [128]})
    nodes.append(
        {"name": "out", "op": "head", "inputs": ["a99"], "attrs": {"in": 128, "bias": False}, "shape": [2]},
    )
    graph = Graph.from_json(nodes)
    began = time.perf_counter()
    limits.check_branches(graph)
    find_channels(graph)
    assert time.perf_counter() - began < 5


def test_a_network_that_would_run_for_hours_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels in the file, but large windows at many places of a large image."""
    shape = [1, 4096, 4096]
    pool = {"kernel": 4095, "stride": 1, "padding": 2047, "dilation": 1, "ceil_mode": False}
    graph = Graph.from_json(
        [
            {"name": "input", "op": "input", "inputs": [], "attrs": {}, "shape": shape},
            {"name": "pool", "op": "max_pool", "inputs": ["input"], "attrs": pool, "shape": shape},
            {"name": "mean", "op": "mean", "inputs": ["pool"], "attrs": {"keepdim": False}, "shape": [1]},
            {"name": "out", "op": "head", "inputs": ["mean"], "attrs": {"in": 1, "bias": False}, "shape": [2]},
        ]
    )
    largest, operations = limits.work(graph, find_channels(graph), (1,))
    assert largest == 4096**2
    assert operations > 10**14 > verify.LONGEST_PROBE
    vgg = trace.trace(backbone("vgg16-bn", channels=3, width=1.0, image=32), (3, 32, 32))
    channels = find_channels(vgg)
    largest, operations = limits.work(vgg, channels, channels.template_widths())
    assert largest == 9 * 64 * 32 * 32
    assert 330e6 < operations < 335e6  # 313 million of convolutions, 19 of linear layers, and the rest
    monkeypatch.setattr(verify, "LONGEST_PROBE", 1000)
    found = verify.verify_content(container.parse(golden()))
    assert [line for line in found.differences if "operations are too many" in line] == found.differences
    assert len(found.differences) == 3
