"""Plain networks at 1x, trained alone or from a copy: Scratch, Fine-tune, and the targets that they set."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from grown import seeds
from grown.config import Config, Recipe
from grown.data.normalisation import Normalisation
from grown.data.part import Part
from grown.methods.base import Observer
from grown.nn.axes import Widths
from grown.nn.bank import as_stored, make_banks
from grown.nn.graph import Graph
from grown.nn.groups import find_channels
from grown.nn.initial import Initializer
from grown.nn.plain import build, start
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.lanes import fit_together
from grown.train.statistics import estimate_statistics
from grown.train.steps import Epoch, Work
from grown.train.turns import TurnedHead


class Named(Protocol):
    """As much of a task as a training asks for beside its images."""

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class PlainResult:
    """A trained plain network and its held-out accuracy."""

    network: nn.Module
    val: float


@dataclass(frozen=True)
class PlainJob:
    """One training: a part of a task, from scratch or from an earlier task's network, by a recipe."""

    task: Named
    part: Part
    held_out: Part
    normalise: Normalisation
    recipe: Recipe
    parent: str | None = None


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

    def fresh(self, task: Named, seed: int, widths: Widths | None = None) -> nn.Module:
        """An untrained network, drawn as the template was; of the template's widths, or of others."""
        widths = self.widths if widths is None else widths
        network = start(build(self.graph, self.channels, widths, len(task.classes)))
        initializer = Initializer(self.gains, seed, 0)
        banks = make_banks(self.graph.banked(), self.channels)
        with torch.no_grad():
            for node in self.graph.banked():
                bank, module = banks[node.name], _layer(network, node.name)
                kernels = initializer.kernels(node.name, bank.extent(widths), bank.kernel, 0)
                module.weight.copy_(kernels.flatten(1) if node.op == "linear" else kernels)
            draw_head(_layer(network, self.graph.head.name), initializer)
        return network

    def copied(self, parent: str, task: Named, seed: int) -> nn.Module:
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

    def train(self, job: PlainJob) -> PlainResult:
        """Train one network and keep it."""
        return self.train_together([job])[0]

    def train_together(self, jobs: list[PlainJob]) -> list[PlainResult]:
        """Train these networks, side by side where the device has room, and keep the last of each task."""
        works, heads, drawn = [], [], {}
        for job in jobs:
            seed = seeds.derive(self.config.seed, "plain", job.task.name)
            key = (job.task.name, job.parent)
            if key not in drawn:
                drawn[key] = (
                    self.fresh(job.task, seed) if job.parent is None else self.copied(job.parent, job.task, seed)
                )
            network = copy.deepcopy(drawn[key]).to(self.config.device).train().requires_grad_(True)
            if job.recipe.turns:
                draw = seeds.generator(self.config.seed, "turns", job.task.name)
                heads.append(TurnedHead(network, self.graph.head.name, draw))
            part, device = job.part, self.config.device
            batches = Batches(part, job.normalise, job.recipe, device, self.config.seed, job.task.name, "plain")
            tell = self._teller(job)
            works.append(Work(network, plain_groups(network), batches, job.recipe, seed, after_epoch=tell))
        fit_together(works, self.config.lanes)
        for head in heads:
            head.undo()
        return [self._settle(job, work) for job, work in zip(jobs, works, strict=True)]

    def _settle(self, job: PlainJob, work: Work) -> PlainResult:
        network, config = work.network, self.config
        with torch.no_grad():
            for node in self.graph.banked():
                weight = _layer(network, node.name).weight
                weight.copy_(as_stored(weight, config.kernel_format))
        estimate_statistics(network, work.batches.inputs(epochs=2))
        network.eval().requires_grad_(False)
        val = evaluate(network, job.held_out, job.normalise, config.device).accuracy
        self.networks[job.task.name] = network.cpu()
        return PlainResult(network, val)

    def _teller(self, job: PlainJob) -> Callable[[Epoch], None]:
        stage = "scratch" if job.parent is None else "finetune"

        def after_epoch(epoch: Epoch) -> None:
            if self.observer is not None:
                event = {"event": "epoch", "task": job.task.name, "stage": stage, "round": 0}
                self.observer({**event, "epoch": epoch.number, "epochs": epoch.epochs, "loss": epoch.loss})

        return after_epoch


def plain_groups(network: nn.Module, apart: Iterable[nn.Parameter] = ()) -> list[dict[str, Any]]:
    """A plain network's parameters by kind, as `Stage.parameter_groups` divides them; not those `apart`."""
    others = {id(parameter) for parameter in apart}
    mine = [parameter for parameter in network.parameters() if id(parameter) not in others]
    weights = [parameter for parameter in mine if parameter.ndim > 1]
    norms = [parameter for parameter in mine if parameter.ndim <= 1]
    return [{"name": "weights", "params": weights}, {"name": "norms", "params": norms}]


def _layer(network: nn.Module, name: str) -> Any:
    return network.get_submodule(name)


def draw_head(head: Any, initializer: Initializer) -> None:
    """Draw a last layer's weights, as PyTorch does."""
    spread = 1.0 / max(1, head.in_features) ** 0.5
    head.weight.uniform_(-spread, spread, generator=initializer.generator("head", 0))
