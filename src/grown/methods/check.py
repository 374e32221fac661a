"""What a model's file must hold, checked before anything is allocated for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods.base import PROBE_BATCH
from grown.nn import bits, limits
from grown.nn.axes import Widths
from grown.nn.bank import Bank, no_widths
from grown.nn.graph import Graph
from grown.nn.groups import Channels, find_channels

KERNEL_TYPES = (torch.float32, torch.bfloat16)


def read_graph(fields: Fields, stored: int, multiple: int = 1) -> tuple[Graph, dict[str, float]]:
    """The graph and the gains, once it is clear that empty banks for it are harmless."""
    graph = Graph.from_json(fields.any("graph"))
    limits.check_branches(graph)
    channels = find_channels(graph, multiple)
    empty = limits.kernel_counts(graph, channels, no_widths(channels))
    limits.check_memory(sum(kernels * (4 * weights + 4) for kernels, weights in empty), stored)
    names = [node.name for node in graph.banked()]
    gains = Fields(fields.any("gains"), "its gains")
    if set(fields.any("gains")) != set(names):
        raise FileError("its gains do not name its layers")
    return graph, {name: gains.number(name, above=0.0) for name in fields.any("gains")}


def read_widths(fields: Fields, channels: Channels, within: Widths | None = None) -> Widths:
    """A width for each group, whole in what it must be."""
    widths = fields.wholes("widths", len(channels.groups))
    for group, width in zip(channels.groups, widths, strict=True):
        if (group.fixed and width != group.width) or width % group.quantum:
            raise FileError(f"channel group {group.name} cannot have {width} channels")
        if within is not None and width > within[group.index]:
            raise FileError(f"a task sees {width} channels of {group.name}, but there are {within[group.index]}")
    return widths


def read_tasks(entries: list[Any], nodes: int, stored: int) -> list[Fields]:
    """The tasks' entries: numbers rise, names differ, and there are not more than the file has bytes for."""
    if len(entries) * nodes > stored // 16 + 4096:  # each is a module to build
        raise FileError(f"{len(entries)} tasks of {nodes} nodes do not go with {stored:,} bytes of tensors")
    tasks = [Fields(entry, "a task") for entry in entries]
    last, names = 0, set()
    for task in tasks:
        last = task.whole("number", last + 1, 2**31 - 2)
        name = task.text("name")
        if name in names:
            raise FileError(f"two tasks are named {name!r}")
        names.add(name)
    return tasks


def check_tensors(
    tensors: Mapping[str, Tensor],
    tasks: list[Fields],
    graph: Graph,
    channels: Channels,
    banks: Mapping[str, Bank],
    widths: Widths,
    picks: bool = True,
) -> None:
    """Names, types and shapes of all tensors, and what they will take in memory; `picks`: tasks have picked bits."""
    stored = stored_bytes(tensors)
    needed = sum(n * (4 * weights + 4) for n, weights in limits.kernel_counts(graph, channels, widths))
    expected: dict[str, tuple[Any, ...]] = {}
    for name, bank in banks.items():
        rows, columns = bank.extent(widths)
        expected[f"bank/{name}/owners"] = (torch.uint8, None, bits.packed_length(rows * columns))
        expected[f"bank/{name}/kernels"] = (KERNEL_TYPES, None, *bank.kernel)
    for task in tasks:
        prefix = f"task/{task.whole('number')}/"
        seen = read_widths(task, channels, widths)
        soft = prefix + "soft" in tensors
        needed += sum(n * (5 if soft else 1) for n, _ in limits.kernel_counts(graph, channels, seen))
        classes = len(task.names("classes"))
        expected[prefix + "probe"] = (torch.float32, PROBE_BATCH, classes)
        expected[prefix + "kept"] = (torch.uint8, bits.packed_length(sum(seen)))
        if picks:
            expected[prefix + "picked"] = (torch.uint8, None)
        expected |= {prefix + part: (torch.float32, None) for part in ("own", "head", *(["soft"] * soft))}
    limits.check_memory(needed, stored)
    check_expected(tensors, expected)


def check_plain(tensors: Mapping[str, Tensor], tasks: list[Fields], more: tuple[str, ...] = ()) -> None:
    """The same where each task has a network of its own: its networks take no more memory than its file.

    `more` are parts that are stored as kernels are.
    """
    expected: dict[str, tuple[Any, ...]] = {}
    for number, task in enumerate(tasks, start=1):
        prefix = f"task/{task.whole('number', number, number)}/"
        expected |= {prefix + part: (torch.float32, None) for part in ("own", "head")}
        expected |= {prefix + part: (KERNEL_TYPES, None) for part in ("kernels", *more)}
        expected[prefix + "probe"] = (torch.float32, PROBE_BATCH, len(task.names("classes")))
    check_expected(tensors, expected)


def check_joint(tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
    """The same where one network has a head in as many parts as there are tasks."""
    expected: dict[str, tuple[Any, ...]] = {}
    if tasks:
        expected = {"joint/own": (torch.float32, None), "joint/kernels": (KERNEL_TYPES, None)}
    for number, task in enumerate(tasks, start=1):
        prefix = f"task/{task.whole('number', number, number)}/"
        expected[prefix + "head"] = (torch.float32, None)
        expected[prefix + "probe"] = (torch.float32, PROBE_BATCH, len(task.names("classes")))
    check_expected(tensors, expected)


def check_shared(tensors: Mapping[str, Tensor], tasks: list[Fields], kept: Mapping[str, tuple[Any, ...]]) -> None:
    """The same where tasks share their kernels alone; `kept` are these, and what the method needs to go on."""
    expected: dict[str, tuple[Any, ...]] = dict(kept)
    for number, task in enumerate(tasks, start=1):
        prefix = f"task/{task.whole('number', number, number)}/"
        expected |= {prefix + part: (torch.float32, None) for part in ("own", "head")}
        expected[prefix + "probe"] = (torch.float32, PROBE_BATCH, len(task.names("classes")))
    check_expected(tensors, expected)


def check_expected(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Exactly these tensors, each of its type and shape; None is any length."""
    if strange := sorted(set(tensors) ^ set(expected)):
        verb = "holds" if strange[0] in tensors else "lacks"
        raise FileError(f"it {verb} {strange[0]}, which does not go with its tasks and layers")
    for name, (kind, *shape) in expected.items():
        tensor = tensors[name]
        fits = tensor.ndim == len(shape) and all(
            want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype not in (kind if isinstance(kind, tuple) else (kind,)):
            raise FileError(f"{name} is {tensor.dtype} {list(tensor.shape)}, which does not go with its layer or task")


def stored_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of all tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())


def read_bank(name: str, bank: Bank, tensors: Mapping[str, Tensor], widths: Widths, tasks: int) -> None:
    """Fill a bank with what the file has for it."""
    extent = bank.extent(widths)
    owner = bits.unpack_numbers(tensors[f"bank/{name}/owners"], extent[0] * extent[1]).view(extent)
    kernels = tensors[f"bank/{name}/kernels"]
    owned = int((owner > 0).sum())
    if owned != len(kernels):
        raise FileError(f"layer {name}: {owned} kernels have an owner, but {len(kernels)} are there")
    if owned and int(owner.max()) > tasks:
        raise FileError(f"layer {name}: a kernel's owner is task {int(owner.max())}, but {tasks} were learned")
    bank.restore(owner, kernels.to(torch.float32))
