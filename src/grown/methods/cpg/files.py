"""CPG's tensors in a file, and how they are read from a stranger's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError
from grown.io import flat
from grown.io.fields import Fields
from grown.methods import check
from grown.methods.base import PROBE_BATCH
from grown.methods.cpg.elements import MOST_TASKS, Elements
from grown.nn import bits, limits
from grown.nn.axes import Widths
from grown.nn.bank import FORMATS
from grown.nn.graph import Graph
from grown.nn.groups import Channels
from grown.nn.plain import divide, own_shapes


@dataclass(frozen=True)
class Kept:
    """What a task has beside weights: its widths, packed bits over earlier tasks' weights, norms, biases and head."""

    widths: Widths
    picked: Tensor
    rest: dict[str, Tensor]


def elements_to_tensors(elements: Elements, kind: str) -> dict[str, Tensor]:
    """All owners, and the weights that have one."""
    tensors = {}
    for name in elements.banks:
        tensors[f"bank/{name}/owners"] = bits.pack_numbers(elements.owners(name))
        tensors[f"bank/{name}/kernels"] = elements.owned(name).to(FORMATS[kind])
    return tensors


def rest_to_tensors(graph: Graph, channels: Channels, kept: Kept, classes: int) -> dict[str, Tensor]:
    """A task's own tensors."""
    shapes = divide(graph, own_shapes(graph, channels, kept.widths, classes))
    return {"picked": kept.picked, **{part: flat.flatten(kept.rest, keys) for part, keys in shapes.items()}}


def read_tasks(meta: Fields, tensors: Mapping[str, Tensor], graph: Graph, elements: Elements) -> list[Fields]:
    """The tasks' entries, and the weights, once it is clear that the tensors are what these tasks need."""
    stored = check.stored_bytes(tensors)
    tasks = check.read_tasks(meta.items("tasks"), len(graph.nodes), stored)
    if len(tasks) > MOST_TASKS:
        raise FileError(f"it has {len(tasks)} tasks, but at most {MOST_TASKS} share a network")
    widths = _widths(tasks, elements)[-1] if tasks else elements.widths
    expected: dict[str, tuple[Any, ...]] = {}
    for name in elements.banks if tasks else ():
        count = math.prod(elements.shape(name, widths))
        expected[f"bank/{name}/owners"] = (torch.uint8, None, bits.packed_length(count))
        expected[f"bank/{name}/kernels"] = (check.KERNEL_TYPES, None)
    for number, entry in enumerate(tasks, start=1):
        prefix = f"task/{entry.whole('number', number, number)}/"
        expected |= {prefix + part: (torch.float32, None) for part in ("own", "head")}
        expected[prefix + "picked"] = (torch.uint8, None)
        expected[prefix + "probe"] = (torch.float32, PROBE_BATCH, len(entry.names("classes")))
    check.check_expected(tensors, expected)
    limits.check_memory(9 * elements.count(widths), stored)  # a weight, its owner, and that once more while it is read
    if tasks:
        _read_elements(elements, widths, tensors, len(tasks))
    return tasks


def _widths(tasks: list[Fields], elements: Elements) -> list[Widths]:
    """Each task's widths; those of the one behind it are no smaller."""
    found: list[Widths] = []
    for entry in reversed(tasks):
        found.append(check.read_widths(entry, elements.channels, found[-1] if found else None))
    return found[::-1]


def _read_elements(elements: Elements, widths: Widths, tensors: Mapping[str, Tensor], tasks: int) -> None:
    """Fill the layers; each has a weight with an owner, since pruning leaves one."""
    elements.widths = widths
    for name in elements.banks:
        shape = elements.shape(name, widths)
        planes, kernels = tensors[f"bank/{name}/owners"], tensors[f"bank/{name}/kernels"]
        if not len(planes):
            raise FileError(f"layer {name}: nobody owns a weight of it")
        owners = bits.unpack_numbers(planes, math.prod(shape)).view(shape)
        owned = int((owners > 0).sum())
        if owned != len(kernels):
            raise FileError(f"layer {name}: {owned} weights have an owner, but {len(kernels)} are there")
        if int(owners.max()) > tasks:
            raise FileError(f"layer {name}: a weight's owner is task {int(owners.max())}, but {tasks} were learned")
        elements.restore(name, owners, kernels.float())


def read_kept(tasks: list[Fields], tensors: Mapping[str, Tensor], graph: Graph, elements: Elements) -> dict[str, Kept]:
    """What each task has beside weights, in the order of learning."""
    found: dict[str, Kept] = {}
    whole = elements.histogram(elements.widths)
    seen = {elements.widths: whole}
    for number, (entry, widths) in enumerate(zip(tasks, _widths(tasks, elements), strict=True), start=1):
        name, prefix = entry.text("name"), f"task/{number}/"
        if widths not in seen:
            seen[widths] = elements.histogram(widths)
        if seen[widths][number] != whole[number]:
            raise FileError(f"task {name!r} owns weights outside the channels that it sees")
        picked = tensors[prefix + "picked"]
        bits.unpack(picked, sum(seen[widths][1:number]))  # refuses another length
        rest: dict[str, Tensor] = {}
        for part, keys in divide(
            graph, own_shapes(graph, elements.channels, widths, len(entry.names("classes")))
        ).items():
            rest |= flat.split(prefix + part, tensors[prefix + part], keys)
        found[name] = Kept(widths, picked, rest)
    return found
