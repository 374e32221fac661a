"""What new tasks added to a model, as a file of its own, and how it is put onto the older model again.

An owned kernel never changes and channels are only appended, so that all of this is additions: the kernels that new
tasks own, where they stand among those that were free, and the new tasks' records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from grown.errors import FileError
from grown.io import container, strict_json
from grown.io.container import Content
from grown.io.fields import Fields
from grown.io.state import State
from grown.io.versions import DELTA, MODEL
from grown.methods.check import KERNEL_TYPES, check_expected, read_widths, stored_bytes
from grown.methods.grown.learner import Learner
from grown.nn import bits, limits
from grown.nn.axes import Widths
from grown.nn.bank import FREE

OF_THE_FILE = ("format", "version", "digests", "digest", "tasks")  # metadata that are no setting of the model


def diff(old: Content, new: Content) -> bytes:
    """The delta between two models, as a file's bytes; refused where the newer is more than the older and additions."""
    before, after = _learner(old, "OLD"), _learner(new, "NEW")
    tasks = _new_tasks(old, new)
    changed = {
        key: value
        for key, value in new.meta.items()
        if key not in OF_THE_FILE and not _same(value, old.meta.get(key, _ABSENT))
    }
    if "graph" in changed or set(old.meta) - set(new.meta):
        raise FileError("NEW is not OLD with more tasks: its network is another one")
    kernels, owners = [], []
    for name, known, owner in _banks(before, after):
        mine = new.tensors[f"bank/{name}/kernels"]
        added = ~known[owner > FREE]
        if container.digest(mine[~added]) != container.digest(old.tensors[f"bank/{name}/kernels"]):
            raise FileError(f"NEW is not OLD with more tasks: layer {name} has other kernels")
        kernels.append(mine[added].flatten())
        owners.append(torch.where(owner > FREE, owner - (before.next_number - 1), 0)[~known])
    if len({part.dtype for part in kernels}) != 1:
        raise FileError("NEW stores some kernels in fp32 and others in bf16, which a delta does not hold")
    tensors = {"kernels": torch.cat(kernels), "owners": bits.pack_numbers(torch.cat(owners))}
    numbers = {str(entry["number"]) for entry in tasks}
    tensors |= {name: new.tensors[name] for name in new.tensors if _task_of(name) in numbers}
    meta = {"method": "grown", "old": old.sha256, "new": new.sha256, "changed": changed, "tasks": tasks}
    data = container.dump(tensors, meta, DELTA)
    if new.written != MODEL.version:
        raise FileError(f"NEW has format {new.written}; load and save it, so that it has format {MODEL.version}")
    apply(old, container.parse(data, DELTA))  # what could not be put onto OLD is not handed out
    return data


def apply(old: Content, delta: Content) -> bytes:
    """The newer model's bytes; refused where the delta is another model's."""
    about = Fields(delta.meta, "the delta")
    if about.text("old") != old.sha256:
        raise FileError(
            f"this delta is for a model with SHA-256 {about.text('old')[:12]}..., "
            f"but the model has {old.sha256[:12]}...; it does not fit"
        )
    before = _learner(old, "MODEL")
    changed, tasks = about.any("changed"), about.items("tasks")
    numbers = [str(Fields(entry, "a task of the delta").whole("number", before.next_number)) for entry in tasks]
    if not isinstance(changed, dict) or not {"graph", "method", *OF_THE_FILE}.isdisjoint(changed):
        raise FileError("the delta changes what a delta cannot change")
    meta: dict[str, Any] = {key: value for key, value in old.meta.items() if key not in OF_THE_FILE}
    meta |= {**changed, "tasks": old.meta["tasks"] + tasks}
    tensors = dict(old.tensors) | _of_banks(before, old, delta, read_widths(Fields(meta, "the delta"), before.channels))
    records = {name: tensor for name, tensor in delta.tensors.items() if name.startswith("task/")}
    if strange := [name for name in records if _task_of(name) not in numbers]:
        raise FileError(f"the delta holds {strange[0]}, which is of none of its tasks")
    data = container.dump(tensors | records, meta)
    if hashlib.sha256(data).hexdigest() != about.text("new"):
        raise FileError("the delta does not give the model that it was made of")
    return data


def _of_banks(before: Learner, old: Content, delta: Content, widths: Widths) -> dict[str, Tensor]:
    """The banks of the newer model."""
    if any(a > b for a, b in zip(before.widths, widths, strict=True)):
        raise FileError("the delta takes channels away")
    counts = limits.kernel_counts(before.graph, before.channels, widths)
    stored = stored_bytes(old.tensors) + stored_bytes(delta.tensors)
    limits.check_memory(sum(kernels * (4 * weights + 4) for kernels, weights in counts), stored)
    tensors = {}
    shared = {name: tensor for name, tensor in delta.tensors.items() if not name.startswith("task/")}
    check_expected(shared, {"kernels": (KERNEL_TYPES, None), "owners": (torch.uint8, None, None)})
    free = [
        kernels - bank.owned() for (kernels, _), bank in zip(counts, before.banks.values(), strict=True)
    ]  # kernels that a new task can have come to own
    numbered = torch.split(bits.unpack_numbers(shared["owners"], sum(free)), free)
    unread = shared["kernels"]
    for (name, bank), values in zip(before.banks.items(), numbered, strict=True):
        known = _known(before, name, widths)
        owner = torch.zeros(bank.extent(widths), dtype=torch.int32)
        owner[known] = bank.owner[bank.owner > FREE]
        owner[~known] = torch.where(values > 0, values + (before.next_number - 1), 0)
        added, count = ~known[owner > FREE], int((values > 0).sum())
        earlier = old.tensors[f"bank/{name}/kernels"]
        mine, unread = unread[: count * bank.kernel_size], unread[count * bank.kernel_size :]
        if mine.numel() != count * bank.kernel_size or (len(earlier) and mine.dtype != earlier.dtype):
            raise FileError(f"the delta's kernels do not go with layer {name}")
        kernels = torch.empty((len(added), *bank.kernel), dtype=mine.dtype)
        kernels[~added], kernels[added] = earlier.to(mine.dtype), mine.view(count, *bank.kernel)
        tensors[f"bank/{name}/kernels"], tensors[f"bank/{name}/owners"] = kernels, bits.pack_numbers(owner)
    if unread.numel():
        raise FileError("the delta has kernels left over")
    return tensors


_ABSENT = object()


def _same(one: Any, other: Any) -> bool:
    """Equal in a file: 1 and 1.0 are not."""
    return other is not _ABSENT and strict_json.write(one) == strict_json.write(other)


def _learner(content: Content, which: str) -> Learner:
    if content.meta.get("method") != "grown":
        raise FileError(f"{which} is a model of {str(content.meta.get('method'))[:30]!r}; only grown's have deltas")
    learner = Learner(None)
    learner.load_state(State(content.tensors, content.meta))
    return learner


def _task_of(tensor: str) -> str | None:
    """The number in `task/NUMBER/part`."""
    parts = tensor.split("/")
    return parts[1] if parts[0] == "task" and len(parts) == 3 else None


def _new_tasks(old: Content, new: Content) -> list[dict[str, Any]]:
    """The entries behind those that both have."""
    ours, theirs = old.meta["tasks"], new.meta["tasks"]
    for number, entry in enumerate(ours):
        same = number < len(theirs) and _same(entry, theirs[number])
        if not same or _digests(old, entry) != _digests(new, entry):
            raise FileError(f"NEW is not OLD with more tasks: task {entry['name']!r} is missing or another one")
    if len(theirs) == len(ours):
        raise FileError("NEW has no task that OLD lacks")
    if theirs[len(ours)]["number"] < old.meta["next_number"]:
        raise FileError(f"NEW is not OLD with more tasks: task {theirs[len(ours)]['name']!r} has a number of OLD's")
    tasks: list[dict[str, Any]] = theirs[len(ours) :]
    return tasks


def _digests(content: Content, entry: dict[str, Any]) -> dict[str, str]:
    """What a task has, apart from kernels."""
    number = str(entry["number"])
    return {name: container.digest(tensor) for name, tensor in content.tensors.items() if _task_of(name) == number}


def _known(before: Learner, name: str, widths: Widths) -> Tensor:
    """At these widths, which kernels had an owner before."""
    bank = before.banks[name]
    known = torch.zeros(bank.extent(widths), dtype=torch.bool)
    rows, columns = bank.view(widths, before.widths)
    known[rows[:, None], columns] = bank.owner > FREE
    return known


def _banks(before: Learner, after: Learner) -> Iterator[tuple[str, Tensor, Tensor]]:
    """For each layer: its name, which kernels had an owner before, and all owners after."""
    if any(a > b for a, b in zip(before.widths, after.widths, strict=True)):
        raise FileError("NEW is not OLD with more tasks: it has fewer channels")
    for name, bank in before.banks.items():
        known, owner = _known(before, name, after.widths), after.banks[name].owner
        later = owner[~known]
        same = torch.equal(owner[known], bank.owner[bank.owner > FREE])
        if not same or bool(((later > FREE) & (later < before.next_number)).any()):
            raise FileError(f"NEW is not OLD with more tasks: layer {name} has other owners")
        yield name, known, owner
