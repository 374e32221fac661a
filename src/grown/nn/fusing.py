"""Which neighbours of a network run as one kernel while it trains, and how each is run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from grown.nn import accelerate, banded, pooled

MOST = 64  # values of a pooling window that one kernel reads


class Part(NamedTuple):
    """An operation of a network: `kind` is norm, relu, add, identity, or anything else."""

    name: str
    kind: str
    inputs: tuple[str, ...]


class Behind(NamedTuple):
    """What runs together with a norm: perhaps a ReLU, and before it perhaps an addition to what `other` gives."""

    relu: str | None = None
    add: str | None = None
    other: str | None = None


def find(parts: Iterable[Part]) -> dict[str, Behind]:
    """The norms of a network, its parts in the order in which they run, and what can run together with each."""
    named = {part.name: part for part in parts}
    order = {name: number for number, name in enumerate(named)}
    readers: dict[str, list[Part]] = {name: [] for name in named}
    for part in named.values():
        for source in part.inputs:
            readers[source].append(part)
    found = {part.name: Behind() for part in named.values() if part.kind == "norm"}
    for name in found:
        if (reader := _only(readers[name])) is not None:
            if reader.kind == "relu":
                found[name] = Behind(reader.name)
            elif reader.kind == "add" and len(reader.inputs) == 2:
                other = next(source for source in reader.inputs if source != name)
                while named[other].kind == "identity":
                    other = named[other].inputs[0]
                last = _only(readers[reader.name])
                if order[other] < order[name] and last is not None and last.kind == "relu":
                    found[name] = Behind(last.name, reader.name, other)
    return found


def _only(readers: list[Part]) -> Part | None:
    return readers[0] if len(readers) == 1 else None


def norm_relu(x: Tensor, norm: Any, added: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """A batch norm, an addition if there is one, and ReLU if there is one."""
    if norm.training and (kernels := _kernels(x)) is not None:
        y: Tensor = kernels.norm_relu(x, norm, added, relu=relu)
        return y
    y = norm(x)
    y = y if added is None else y + added
    return nn.functional.relu(y) if relu else y


def max_pool(x: Tensor, pool: Any) -> Tensor:
    """What a module that pools the largest values does."""
    if pool.training and (kernels := _kernels(x)) is not None and (window := _window(pool, x)) is not None:
        y: Tensor = kernels.max_pool(x, *window)
        return y
    if pool.training and x.device.type == "cpu" and x.ndim == 4 and isinstance(pool, nn.MaxPool2d):
        sides = (_pair(side) for side in (pool.kernel_size, pool.stride, pool.padding, pool.dilation))
        return pooled.max_pool(x, *sides, pool.ceil_mode)
    out: Tensor = pool(x)
    return out


def lrn(x: Tensor, norm: Any, gate: Tensor | None = None) -> Tensor:
    """What a module with a local response norm does; with a gate, among the open channels alone.

    Open channels are then moved together, so that each sees the neighbours that it will have once the closed are gone.
    """
    kernels = (_kernels(x) or _banded(x)) if norm.training else None
    of = (norm.size, norm.alpha, norm.beta, norm.k)
    y: Tensor
    if gate is None:
        y = norm(x) if kernels is None else kernels.lrn(x, *of)
    else:
        order = torch.argsort(gate.detach(), descending=True, stable=True)
        counted = x * gate.view(1, -1, 1, 1)
        y = (_ordered_lrn if kernels is None else kernels.ordered_lrn)(x, counted, order, *of)
    return y


def _ordered_lrn(x: Tensor, counted: Tensor, order: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    squares = counted[:, order].square().unsqueeze(1)
    padded = nn.functional.pad(squares, (0, 0, 0, 0, size // 2, (size - 1) // 2))
    mean = nn.functional.avg_pool3d(padded, (size, 1, 1), stride=1).squeeze(1)
    return x / (k + alpha * mean).pow(beta)[:, torch.argsort(order)]


def _kernels(x: Tensor) -> Any:
    return accelerate.fused() if x.is_cuda and x.ndim == 4 else None


def _banded(x: Tensor) -> Any:
    """What stands for the kernels of local response norm on a CPU."""
    return banded if x.device.type == "cpu" and x.ndim == 4 and x.shape[1] <= banded.MOST else None


def _window(pool: Any, x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Kernel, stride and padding, if one kernel can do it."""
    if isinstance(pool, nn.AdaptiveMaxPool2d):
        window = (tuple(x.shape[2:]), tuple(x.shape[2:]), (0, 0))
        plain = _pair(pool.output_size) == (1, 1)
    else:
        window = tuple(_pair(side) for side in (pool.kernel_size, pool.stride, pool.padding))
        plain = not pool.ceil_mode and _pair(pool.dilation) == (1, 1)
    return window if plain and not pool.return_indices and window[0][0] * window[0][1] <= MOST else None
