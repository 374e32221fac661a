"""What must hold between owners, records and widths, however a model was learned: each breach in words."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from grown.methods.grown.learner import Learner
from grown.methods.grown.record import Record, kept_kernels
from grown.nn.bank import FREE, Bank


def breaches(learner: Learner) -> list[str]:
    """Every rule that this model breaks, with its task and layer."""
    found = _widths(learner)
    claimed = dict.fromkeys(learner.records, 0)
    for name, bank in learner.banks.items():
        used = torch.zeros(bank.shape, dtype=torch.bool)
        for record in learner.records.values():
            found += _record_in_bank(record, name, bank, learner)
            rows, columns = bank.view(learner.widths, record.widths)
            used[rows[:, None], columns] |= record.active[name]
            claimed[record.name] += int((bank.owner == record.number).sum())
        found += _nobodys(learner, name, bank, used)
        if not bool(bank.kernels[bank.owner == FREE].eq(0).all()):
            found.append(f"layer {name}: a kernel that nobody owns is not zero")
    for record in learner.records.values():
        if claimed[record.name] != sum(record.new_kernels.values()):
            found.append(
                f"task {record.name!r}: it owns {claimed[record.name]} kernels, but its record counts "
                f"{sum(record.new_kernels.values())}"
            )
    return found


def _widths(learner: Learner) -> list[str]:
    """Channels are only ever appended: what a task sees is a prefix of what later ones see."""
    found = []
    records = list(learner.records.values())
    for earlier, later in pairwise(records):
        for group in learner.channels.groups:
            if earlier.widths[group.index] > later.widths[group.index]:
                found.append(f"task {later.name!r}: it sees fewer channels of {group.name} than task {earlier.name!r}")
    return found


def _record_in_bank(record: Record, name: str, bank: Bank, learner: Learner) -> list[str]:
    found, where = [], f"task {record.name!r}, layer {name}"
    owner = bank.read(learner.widths, record.widths)[1]
    active = record.active[name]
    if bool((active & ((owner == FREE) | (owner > record.number))).any()):
        found.append(f"{where}: it uses a kernel that neither it nor an earlier task owns")
    if bool(((owner == record.number) & ~active).any()):
        found.append(f"{where}: it owns a kernel that it does not use")
    if int((bank.owner == record.number).sum()) != int((owner == record.number).sum()):
        found.append(f"{where}: it owns a kernel outside the channels that it sees")
    if bool((active & ~kept_kernels(record, bank)).any()):
        found.append(f"{where}: it uses a kernel of a channel that it does not keep")
    return found


def _nobodys(learner: Learner, name: str, bank: Bank, used: Tensor) -> list[str]:
    """A task that was removed may still own kernels, but only such as others use."""
    known = torch.tensor([record.number for record in learner.records.values()])
    orphans = (bank.owner > FREE) & ~torch.isin(bank.owner, known) & ~used
    if not bool(orphans.any()):
        return []
    number = int(bank.owner[orphans][0])
    return [f"layer {name}: {int(orphans.sum())} kernels belong to task number {number}, which is gone, for nobody"]
