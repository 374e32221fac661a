"""The networks of earlier tasks while a new one trains: the kernels of the moment with each task's own parts."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx, nn
from torch.func import functional_call

from grown.methods.shared.training import Weights


class Branches(nn.Module):
    """Norms, biases and heads of earlier tasks as parameters, so that they train with the kernels.

    Where the skeleton is in training, norms use each batch's statistics, else those that they were stored with.
    """

    def __init__(self, skeleton: fx.GraphModule, kernels: Mapping[str, Tensor], own: Mapping[str, Weights]) -> None:
        super().__init__()
        self._beside = (skeleton, dict(kernels))  # in a tuple: none of it is this module's to train
        device = next(iter(kernels.values())).device
        self._trained: list[list[str]] = []
        self._fixed: list[Weights] = []
        self.own = nn.ModuleList()
        for values in own.values():
            here = {key: value.to(device).clone() for key, value in values.items()}
            trained = [key for key in here if not _is_statistic(key)]
            self._trained.append(trained)
            self._fixed.append({key: value for key, value in here.items() if _is_statistic(key)})
            self.own.append(nn.ParameterList([nn.Parameter(here[key]) for key in trained]))

    def forward(self, number: int, x: Tensor) -> Tensor:
        """The logits of the task of this number, from 0."""
        skeleton, kernels = self._beside
        own = dict(zip(self._trained[number], self.own[number].parameters(), strict=True))
        logits: Tensor = functional_call(skeleton, {**kernels, **own, **self._fixed[number]}, (x,))
        return logits.float()

    def values(self, number: int) -> Weights:
        """What of a task is its own, as trained."""
        own = zip(self._trained[number], self.own[number].parameters(), strict=True)
        found = {**{key: value.detach() for key, value in own}, **self._fixed[number]}
        return {key: value.cpu().contiguous() for key, value in found.items()}


def frozen(skeleton: fx.GraphModule, kernels: Mapping[str, Tensor], own: Mapping[str, Weights]) -> Branches:
    """The same networks as they are and answer, to learn from."""
    return Branches(
        skeleton.eval(), {key: value.detach().clone() for key, value in kernels.items()}, own
    ).requires_grad_(False)


def _is_statistic(key: str) -> bool:
    return key.rsplit(".", 1)[-1] in ("running_mean", "running_var")
