"""A training between two epochs as tensors by name: the network, its optimizers, its random numbers, its gates' log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from grown.errors import FileError
from grown.train.optimizers import Optimizer


def take(network: nn.Module, optimizers: Iterable[Optimizer], device: torch.device) -> dict[str, Tensor]:
    """Copies of everything that the next epoch depends on; its batches depend on the seed and its number alone."""
    found = {f"network/{key}": value for key, value in network.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for index, parameter in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"optimizer/{number}/{index}/{key}"] = value
    found["random/cpu"] = torch.get_rng_state()
    if device.type == "cuda":
        found["random/cuda"] = torch.cuda.get_rng_state(device)
    log = getattr(network, "gate_log", None)
    if log is not None:
        found |= {f"gates/{group}": states for group, states in log.last.items()}
    return {name: value.detach().to("cpu", copy=True) for name, value in found.items()}


@torch.no_grad()
def restore(tensors: dict[str, Tensor], network: nn.Module, optimizers: list[Optimizer], device: torch.device) -> None:
    """Become what was taken."""
    try:
        network.load_state_dict(_below(tensors, "network"))
    except RuntimeError as error:
        raise FileError("a training was kept of another network than this one") from error
    for number, optimizer in enumerate(optimizers):
        for index, parameter in enumerate(_parameters(optimizer)):
            mine = _below(tensors, f"optimizer/{number}/{index}")
            if mine:
                optimizer.state[parameter] = {key: _like(value, parameter, key) for key, value in mine.items()}
    torch.set_rng_state(tensors["random/cpu"])
    if device.type == "cuda" and "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], device)
    log = getattr(network, "gate_log", None)
    if log is not None:
        log.last.update({int(group): states for group, states in _below(tensors, "gates").items()})


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}/"): value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def _like(value: Tensor, parameter: nn.Parameter, key: str) -> Tensor:
    """In the parameter's own layout, as an optimizer would have made it; a count of steps is no such thing."""
    if key == "step":
        return value.to(parameter.device)
    like = torch.empty_like(parameter)
    like.copy_(value)
    return like
