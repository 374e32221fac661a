"""One task less: its record is erased, its kernels are freed where no other task uses them, and nothing else moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from grown.errors import ConfigError, GrownError, unknown
from grown.methods.grown.learner import Learner
from grown.nn.bank import FREE, Bank


@dataclass(frozen=True)
class Removal:
    """What was freed, and what could not be because others use it."""

    task: str
    freed: int  # kernels
    kept: dict[str, int] = field(default_factory=dict)  # layer -> kernels of the task that others use
    users: dict[str, int] = field(default_factory=dict)  # other task -> kernels of the task that it uses


def remove(learner: Learner, task: str) -> Removal:
    """Erase a task. The others stay identical to the last bit, which is looked at before this returns."""
    if task not in learner.records:
        raise unknown("task", task, learner.records)
    if len(learner.records) == 1:
        raise ConfigError(f"task {task!r} is the only one in this model; delete the file instead")
    others = {name: record for name, record in learner.records.items() if name != task}
    before = {name: learner.extract(name).state_dict() for name in others}
    number = learner.records[task].number
    remaining = torch.tensor([record.number for record in others.values()])
    freed, kept, users = 0, {}, dict.fromkeys(others, 0)
    for layer, bank in learner.banks.items():
        owner = bank.owner
        used = torch.zeros(bank.shape, dtype=torch.bool)
        for name in others:
            mine = _in_bank(bank, learner, name)
            used |= mine
            users[name] += int((mine & (owner == number)).sum())
        # Kernels of tasks that were removed earlier too, if this task was the last to use them.
        free = (owner > FREE) & ~torch.isin(owner, remaining) & ~used
        freed += int(free.sum())
        kept[layer] = int(((owner == number) & used).sum())
        owner[free] = FREE
        bank.restore(owner, bank.kernels[owner > FREE])
    del learner.records[task]
    for record in others.values():
        record.packed = None  # fewer kernels are there to be picked
    for name, state in before.items():
        after = learner.extract(name).state_dict()
        if not all(_identical(value, after[key]) for key, value in state.items()):
            raise GrownError(f"removing {task!r} would change task {name!r}; nothing was written")
    return Removal(
        task,
        freed,
        {layer: count for layer, count in kept.items() if count},
        {name: count for name, count in users.items() if count},
    )


def _in_bank(bank: Bank, learner: Learner, task: str) -> Tensor:
    """Which kernels of the whole bank a task uses."""
    record = learner.records[task]
    used = torch.zeros(bank.shape, dtype=torch.bool)
    rows, columns = bank.view(learner.widths, record.widths)
    used[rows[:, None], columns] = record.active[bank.name]
    return used


def _identical(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
