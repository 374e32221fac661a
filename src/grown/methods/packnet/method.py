"""One network whose weights have an owner each: the task that trained it, or nobody yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from grown.data.task import Task
from grown.errors import FileError
from grown.io.fields import Fields
from grown.methods.base import StageReport
from grown.methods.masked.layers import Kernels
from grown.methods.masked.method import MaskedMethod, Masks, kernels_of, together
from grown.methods.shared.training import Guard, Training, Weights
from grown.nn import bits
from grown.nn.graph import Graph
from grown.train.batches import Batches

FREE = 0


class PackNet(MaskedMethod):
    """A task trains all free weights and keeps the largest; it uses these and those of every task before it."""

    name: ClassVar[str] = "packnet"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._owner = torch.zeros(0, dtype=torch.int16)  # of each weight, all layers behind each other
        self._claimed = 0

    def _trainings(self, task: Task) -> list[Training]:
        if not self._own:
            self._owner = torch.full((self._elements,), FREE, dtype=torch.int16)
        owner = self._divide(self._owner)
        if full := [key.removesuffix(".weight") for key, who in owner.items() if not bool((who == FREE).any())]:
            text = f"{task.name}: no free weight is left in {', '.join(full)}; what is there is used as it is"
            self._emit({"event": "note", "text": text})
        return super()._trainings(task)

    def _guard(self, training: Training) -> Guard:
        """Free weights train; those of earlier tasks are frozen, and all in use."""
        owner = self._divide(self._owner)
        free = {key: (who == FREE).to(training.start[key].device) for key, who in owner.items()}
        return Masks(
            kernels={key: Kernels(None, free[key], start * ~free[key]) for key, start in training.start.items()}
        )

    def _fit(self, trainings: list[Training], guards: list[Guard]) -> None:
        """Train all free weights, prune the smallest, and train the others again."""
        super()._fit(trainings, guards)
        for training, guard in zip(trainings, guards, strict=True):
            for key, made in kernels_of(guard).items():
                keep_largest(made, training.kernels[key], self.config.packnet_prune)
        super()._fit([self._again(training) for training in trainings], guards)

    def _again(self, training: Training) -> Training:
        config, task, images = self.config, training.task.name, training.part
        recipe = dataclasses.replace(training.recipe, epochs=self._fewer(training.recipe.epochs))
        batches = Batches(images, training.normalise, recipe, config.device, config.seed, task, "retrain")
        return dataclasses.replace(training, recipe=recipe, batches=batches)

    def _fewer(self, epochs: int) -> int:
        return max(1, round(self.config.packnet_retrain * epochs))

    def _stages(self, trainings: list[Training], val: float, seconds: float) -> tuple[StageReport, ...]:
        """Each training is followed by its retraining, after which it has a score."""
        names, scores = ("train", "retrain", "refit", "refit retrain"), (None, val, None, None)
        epochs = [count for t in trainings for count in (t.recipe.epochs, self._fewer(t.recipe.epochs))]
        share = seconds / sum(epochs)
        return tuple(
            StageReport(name, count, score, share * count)
            for name, count, score in zip(names, epochs, scores, strict=False)
        )

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:  # noqa: ARG002
        """What is left of the free weights is this task's."""
        mine = {key: _trained(made).cpu() for key, made in kernels_of(guard).items()}
        self._owner[together(mine)] = len(self._own) + 1
        self._claimed = self._claims(mine)
        self._shared = kernels

    def _new_kernels(self, is_new: bool) -> int:  # noqa: ARG002
        return self._claimed

    def _kernels_of(self, task: str) -> Weights:
        """What this task and those before it own; whatever is free is 0."""
        number = 1 + self.tasks.index(task)
        owner = self._divide(self._owner)
        return {key: torch.where(owner[key] <= number, kernel, 0.0) for key, kernel in self._shared.items()}

    # --- files -----------------------------------------------------------------------------------------------------

    def _used(self) -> Tensor:
        return self._owner != FREE

    def _kept(self) -> dict[str, Tensor]:
        return {"shared/owners": bits.pack_numbers(self._owner)}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:  # noqa: ARG002
        return {"shared/owners": (torch.uint8, None, bits.packed_length(self._elements))}

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        owner = bits.unpack_numbers(tensors["shared/owners"], self._elements)
        if len(owner) and int(owner.max()) > len(tasks):
            raise FileError(f"a weight's owner is task {int(owner.max())}, but {len(tasks)} were learned")
        self._owner = owner.to(torch.int16)


@torch.no_grad()
def keep_largest(made: Kernels, weight: Tensor, prune: float) -> None:
    """Let no more train than is left when this share of the weights that trained is pruned, the smallest first."""
    places = _trained(made).flatten().nonzero().flatten()
    sizes = weight.flatten()[places].abs()
    kept = places[sizes.argsort(descending=True, stable=True)[: len(places) - int(prune * len(places))]]
    flags = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device)
    flags[kept] = True
    made.trainable = flags.view(weight.shape)


def _trained(made: Kernels) -> Tensor:
    if made.trainable is None:
        raise ValueError("a layer of PackNet says which of its weights train")
    return made.trainable
