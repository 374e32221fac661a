"""Piggyback: a bit for each weight of a frozen network, which is the first task's (Mallya and others, 2018)."""

import dataclasses
from typing import ClassVar

import torch

from grown.config import Recipe
from grown.methods.masked.masks import Mask, Threshold
from grown.methods.masked.picking import PickingMethod
from grown.methods.shared.training import Training


class Piggyback(PickingMethod):
    """The first task trains the network; every later one learns which of its weights to use."""

    name: ClassVar[str] = "piggyback"
    backbone: ClassVar[bool] = True

    def _mask(self, key: str, training: Training) -> Mask:  # noqa: ARG002
        config = self.config
        return Threshold(torch.full(self._kernel_shapes[key], config.piggyback_start), config.piggyback_threshold)

    def _recipe(self, recipe: Recipe) -> Recipe:
        return dataclasses.replace(recipe, score_rate=self.config.piggyback_rate)
