"""What one task adds beside kernels, and how it is laid out in a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grown.data.normalisation import Normalisation
from grown.errors import FileError
from grown.io import arithmetic, flat
from grown.io.fields import Fields
from grown.methods.grown.features import Features
from grown.nn import axes, bits
from grown.nn.axes import Widths
from grown.nn.bank import Bank
from grown.nn.graph import Graph
from grown.nn.groups import Channels
from grown.nn.plain import build, divide, fill, own_shapes, simplest


@dataclass
class Record:
    """One task: what it sees (widths), keeps (channels), uses (kernels), and what is its own."""

    number: int
    name: str
    classes: tuple[str, ...]
    widths: Widths  # of the banks when it was committed: it sees this prefix for ever
    kept: list[Tensor]  # group -> channels in its network (bool)
    active: dict[str, Tensor]  # layer -> kernels in its network (out, in), its own and picked ones
    soft: dict[str, Tensor] | None  # layer -> what a kernel is multiplied by, in the soft form
    own: dict[str, Tensor]  # its biases, norms and head, narrow, by the names of its network
    normalisation: Normalisation
    probe: Tensor
    target: float | None
    val: float | None
    test: float | None
    grew: bool
    new_kernels: dict[str, int]
    arithmetic: str | None = field(default_factory=arithmetic.here)  # of its probe; None in a file of version 1
    features: Features | None = None  # what its images look like to it, to know them again
    packed: Tensor | None = field(default=None, repr=False)  # its picked bits as the file has them, once they were made

    def narrow(self) -> Widths:
        """The widths of its network."""
        return tuple(int(flags.sum()) for flags in self.kept)


def narrow_kernels(
    bank: Bank,
    kernels: Tensor,
    active: Tensor,
    soft: Tensor | None,
    widths: Widths,
    kept: list[Tensor],
    op: str,
    physical: Widths | None = None,
) -> Tensor:
    """A layer's weight in the task's narrow network: what is not active is zero, what is cut is gone.

    `active` and `soft` are of `widths`; `kernels` may have grown to `physical` widths since.
    """
    positions = [flags.nonzero().flatten() for flags in kept]
    here = bank.at(widths, positions)
    there = here if physical is None else bank.at(physical, positions)
    device = kernels.device
    narrow = kernels[there[0][:, None].to(device), there[1].to(device)]
    on = active[here[0][:, None], here[1]].to(device)
    shape = (*on.shape, *([1] * len(bank.kernel)))
    if soft is not None:
        narrow = narrow * soft[here[0][:, None], here[1]].to(device).view(shape)
    narrow = narrow.masked_fill_(~on.view(shape), 0.0)
    return narrow.flatten(1) if op == "linear" else narrow


def extract(
    record: Record,
    graph: Graph,
    channels: Channels,
    banks: dict[str, Bank],
    physical: Widths,
    kernels: dict[str, Tensor],
) -> Any:
    """A task's network as a plain module, from banks that may have grown since.

    `kernels` are the banks' on a device, where the network is put together: they are chosen there, and in the soft form
    multiplied, which rounds alike everywhere.
    """
    network = build(graph, channels, record.narrow(), len(record.classes))
    state = dict(record.own)
    for node in graph.banked():
        bank = banks[node.name]
        soft = record.soft[node.name] if record.soft is not None else None
        state[f"{node.name}.weight"] = narrow_kernels(
            bank,
            kernels[node.name],
            record.active[node.name],
            soft,
            record.widths,
            record.kept,
            node.op,
            physical,
        )
    return simplest(fill(network, state, next(iter(kernels.values())).device))


# --- in a file -------------------------------------------------------------------------------------------------------


def to_file(record: Record, graph: Graph, channels: Channels, banks: dict[str, Bank], physical: Widths) -> Any:
    """The record as (tensors, JSON object)."""
    parts = divide(graph, own_shapes(graph, channels, record.narrow(), len(record.classes)))
    picked, soft = [], []
    for node in graph.banked() if record.packed is None or record.soft is not None else ():
        earlier = _earlier(record, banks[node.name], physical)
        active = record.active[node.name][earlier]
        if record.soft is None:
            picked.append(active)
        else:
            values = record.soft[node.name][earlier]
            picked.append(active & (values == 1))
            soft.append(torch.where(active, values, torch.zeros(()))[~picked[-1]])
    if picked:
        record.packed = bits.pack(torch.cat(picked))
    prefix = f"task/{record.number}/"
    tensors = {
        prefix + "picked": record.packed,
        prefix + "kept": bits.pack(torch.cat(record.kept)),
        **{prefix + part: flat.flatten(record.own, keys) for part, keys in parts.items()},
        prefix + "probe": record.probe,
    }
    if soft:
        tensors[prefix + "soft"] = torch.cat(soft)
    meta = {
        "number": record.number,
        "name": record.name,
        "classes": list(record.classes),
        "widths": list(record.widths),
        "mean": list(record.normalisation.mean),
        "deviation": list(record.normalisation.deviation),
        "target": record.target,
        "val": record.val,
        "test": record.test,
        "grew": record.grew,
        "new_kernels": record.new_kernels,
        "arithmetic": record.arithmetic,
        **({} if record.features is None else {"features": record.features.to_json()}),
    }
    return tensors, meta


def from_file(
    meta: Fields,
    tensors: dict[str, Tensor],
    graph: Graph,
    channels: Channels,
    banks: dict[str, Bank],
    physical: Widths,
) -> Record:
    """The record that `to_file` wrote."""
    number = meta.whole("number", 1)
    prefix, inputs = f"task/{number}/", graph.input_shape[0]
    widths = meta.wholes("widths", len(channels.groups))
    flags = bits.unpack(tensors[prefix + "kept"], sum(widths))
    new_kernels = Fields(meta.any("new_kernels"), f"task {number}: new_kernels")
    record = Record(
        number=number,
        name=meta.text("name"),
        classes=meta.names("classes"),
        widths=widths,
        kept=[part.clone() for part in torch.split(flags, list(widths))],
        active={},
        soft={} if prefix + "soft" in tensors else None,
        own={},
        normalisation=Normalisation(meta.numbers("mean", inputs), meta.numbers("deviation", inputs, above=0.0)),
        probe=tensors[prefix + "probe"],
        target=meta.number_or_none("target"),
        val=meta.number_or_none("val"),
        test=meta.number_or_none("test"),
        grew=meta.flag("grew"),
        new_kernels={key: new_kernels.whole(key) for key in ("released", "grown")},
        arithmetic=meta.text_or_none("arithmetic"),
    )
    if "features" in meta:
        record.features = Features.from_json(meta.any("features"), len(record.classes))
    _check_kept(record, channels)
    parts = divide(graph, own_shapes(graph, channels, record.narrow(), len(record.classes)))
    for part, keys in parts.items():
        record.own |= flat.split(prefix + part, tensors[prefix + part], keys)
    _read_picked(record, tensors, graph, banks, physical)
    return record


def _read_picked(
    record: Record, tensors: dict[str, Tensor], graph: Graph, banks: dict[str, Bank], physical: Widths
) -> None:
    prefix = f"task/{record.number}/"
    earlier = {node.name: _earlier(record, banks[node.name], physical) for node in graph.banked()}
    if prefix + "picked" in tensors:
        counts = [int(flags.sum()) for flags in earlier.values()]
        picked = list(torch.split(bits.unpack(tensors[prefix + "picked"], sum(counts)), counts))
    else:  # all that its channels let it use
        picked = [kept_kernels(record, banks[name])[where] for name, where in earlier.items()]
    unread = tensors.get(prefix + "soft", torch.zeros(0))
    if record.soft is not None and len(unread) != sum(int((~part).sum()) for part in picked):
        raise FileError(f"task {record.name!r}: {len(unread)} soft values do not go with its picked bits")
    for (name, where), part in zip(earlier.items(), picked, strict=True):
        bank = banks[name]
        active = bank.owners(physical, record.widths) == record.number
        active.masked_scatter_(where, part)  # as everywhere here: an index of places would take more memory
        if record.soft is not None:
            rest = int((~part).sum())
            values = part.float()
            values[~part], unread = unread[:rest], unread[rest:]
            soft = torch.ones(active.shape)
            soft.masked_scatter_(where, values)
            record.soft[name] = soft
            active.masked_scatter_(where, values != 0)
        record.active[name] = active


def kept_kernels(record: Record, bank: Bank) -> Tensor:
    """Which kernels in a task's view lie between channels that it keeps."""
    rows = axes.spread(bank.rows, record.kept)[:, None]
    return rows & axes.spread(bank.columns, record.kept) if bank.columns else rows


def _check_kept(record: Record, channels: Channels) -> None:
    """A task keeps all that touches the input, whole groups under group norm, and something of each group."""
    for group, flags in zip(channels.groups, record.kept, strict=True):
        whole = flags.view(-1, group.quantum)
        if not bool(flags.any()) or not bool((whole.all(1) == whole.any(1)).all()) or group.fixed > bool(flags.all()):
            raise FileError(f"task {record.name!r}: it cannot keep these channels of {group.name}")


def _earlier(record: Record, bank: Bank, physical: Widths) -> Tensor:
    """Which kernels in a task's view an earlier task owned: those that it could pick."""
    owner = bank.owners(physical, record.widths)
    return (owner > 0) & (owner < record.number)
