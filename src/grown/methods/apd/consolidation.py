"""Hierarchical consolidation: tasks with like task-adaptive parts share what is common among them."""

from __future__ import annotations

import torch
from torch import Tensor

from grown.methods.apd.decomposition import Decomposition
from grown.methods.apd.sparse import Sparse

ROUNDS = 100  # of k-means, at most


def consolidate(old: Decomposition, groups: int, gap: float, kind: torch.dtype, draw: torch.Generator) -> Decomposition:
    """The same tasks in at most so many groups; groups of one share nothing."""
    names = list(old.tau)
    adaptive = torch.stack([old.adaptive(name) for name in names])  # (tasks, weights)
    together = (adaptive.double() @ adaptive.double().T).float()
    label = cluster(together, _start(names, old.group, groups, draw))
    new = Decomposition(old.shapes, old.masks)
    new.tau = {name: Sparse.of(vector, kind) for name, vector in zip(names, adaptive, strict=True)}
    for number in dict.fromkeys(label.tolist()):
        members = (label == number).nonzero().flatten().tolist()
        if len(members) < 2:
            continue
        mine = adaptive[members]
        common = mine.amax(0) - mine.amin(0) <= gap
        new.local.append(Sparse.of(torch.where(common, mine.mean(0), 0.0), kind))
        for member in members:
            new.group[names[member]] = len(new.local) - 1
            new.tau[names[member]] = Sparse.of(torch.where(common, 0.0, adaptive[member]), kind)
    return new


def _start(names: list[str], group: dict[str, int], groups: int, draw: torch.Generator) -> Tensor:
    """Where the centres start, each a mixture of tasks (centres, tasks): the groups so far, then tasks drawn."""
    known = sorted(set(group.values()))[:groups]
    centres = [torch.tensor([float(group.get(name) == number) for name in names]) for number in known]
    drawn = torch.randperm(len(names), generator=draw)[: groups - len(known)]
    return torch.stack([*(centre / centre.sum() for centre in centres), *torch.eye(len(names))[drawn]])


def cluster(products: Tensor, centres: Tensor) -> Tensor:
    """k-means over vectors of which only the inner products are known; returns each one's group.

    A centre is a mixture of the vectors, so that distances follow from the products alone.
    """
    label = torch.full((len(products),), -1)
    for _ in range(ROUNDS):
        across = centres @ products  # (centres, tasks)
        distance = products.diag() - 2 * across + (across * centres).sum(1, keepdim=True)
        nearest = distance.argmin(0)
        if torch.equal(nearest, label):
            break
        label = nearest
        belongs = (label == torch.tensor(sorted(set(label.tolist())))[:, None]).float()
        label = belongs.argmax(0)  # groups that nobody is in are gone
        centres = belongs / belongs.sum(1, keepdim=True)
    return label
