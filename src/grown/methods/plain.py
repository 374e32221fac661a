"""Plain networks at 1x, trained alone or from a copy: Scratch, Fine-tune, and the targets that they set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from grown import seeds
from grown.config import Config
from grown.data.task import Normalisation, Part, Task
from grown.methods.base import Observer
from grown.nn.axes import Widths
from grown.nn.bank import make_banks
from grown.nn.graph import Graph
from grown.nn.groups import find_channels
from grown.nn.initial import Initializer
from grown.nn.plain import build, start
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.loop import Epoch, fit
from grown.train.statistics import estimate_statistics


@dataclass(frozen=True)
class PlainResult:
    """A trained plain network and its held-out accuracy."""

    network: nn.Module
    val: float


class PlainTraining:
    """Trains plain networks of the template's own widths, and keeps them by task."""

    def __init__(self, graph: Graph, gains: dict[str, float], config: Config, observer: Observer | None = None) -> None:
        self.graph = graph
        self.gains = gains
        self.config = config
        self.observer = observer
        self.channels = find_channels(graph)
        self.widths: Widths = self.channels.template_widths()
        self.networks: dict[str, nn.Module] = {}

    def fresh(self, task: Task, seed: int) -> nn.Module:
        """An untrained network, drawn as the template was."""
        network = start(build(self.graph, self.channels, self.widths, len(task.classes)))
        initializer = Initializer(self.gains, seed, 0)
        banks = make_banks(self.graph.banked(), self.channels)
        with torch.no_grad():
            for node in self.graph.banked():
                bank, module = banks[node.name], _layer(network, node.name)
                kernels = initializer.kernels(node.name, bank.extent(self.widths), bank.kernel, 0)
                module.weight.copy_(kernels.flatten(1) if node.op == "linear" else kernels)
            _draw_head(_layer(network, self.graph.head.name), initializer)
        return network

    def copied(self, parent: str, task: Task, seed: int) -> nn.Module:
        """An earlier task's network with a new head."""
        network = self.fresh(task, seed)
        head = f"{self.graph.head.name}."
        state = {k: v for k, v in self.networks[parent].state_dict().items() if not k.startswith(head)}
        network.load_state_dict(state, strict=False)
        return network

    def random_parent(self, task: str) -> str | None:
        """An earlier task, drawn; None for the first."""
        earlier = list(self.networks)
        if not earlier:
            return None
        draw = seeds.generator(self.config.seed, "parent", task)
        return earlier[int(torch.randint(len(earlier), (1,), generator=draw))]

    def train(
        self, task: Task, part: Part, held_out: Part, normalise: Normalisation, parent: str | None
    ) -> PlainResult:
        """Train on a part of a task, from scratch or from an earlier task's network, and keep the result."""
        config = self.config
        seed = seeds.derive(config.seed, "plain", task.name)
        network = self.fresh(task, seed) if parent is None else self.copied(parent, task, seed)
        network = network.to(config.device).train().requires_grad_(True)
        batches = Batches(part, normalise, config.recipe, config.device, config.seed, task.name, "plain")
        stage = "scratch" if parent is None else "finetune"

        def after_epoch(epoch: Epoch) -> None:
            if self.observer is not None:
                self.observer(
                    {
                        "event": "epoch",
                        "task": task.name,
                        "stage": stage,
                        "round": 0,
                        "epoch": epoch.number,
                        "epochs": epoch.epochs,
                        "loss": epoch.loss,
                    }
                )

        fit(network, plain_groups(network), batches, config.recipe, seed, after_epoch=after_epoch)
        estimate_statistics(network, batches.inputs(epochs=2))
        network.eval().requires_grad_(False)
        val = evaluate(network, held_out, normalise, config.device).accuracy
        self.networks[task.name] = network.cpu()
        return PlainResult(network, val)


def plain_groups(network: nn.Module) -> list[dict[str, Any]]:
    """A plain network's parameters by kind, as `Stage.parameter_groups` divides them."""
    weights = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in network.parameters() if parameter.ndim <= 1]
    return [{"name": "weights", "params": weights}, {"name": "norms", "params": norms}]


def _layer(network: nn.Module, name: str) -> Any:
    return network.get_submodule(name)


def _draw_head(head: Any, initializer: Initializer) -> None:
    spread = 1.0 / max(1, head.in_features) ** 0.5
    head.weight.uniform_(-spread, spread, generator=initializer.generator("head", 0))
