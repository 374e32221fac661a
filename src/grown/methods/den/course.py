"""How DEN learns one task, in the paper's order: selective retraining, expansion, splitting."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from grown.config import Recipe
from grown.data.normalisation import measure
from grown.data.part import Part
from grown.data.task import Task
from grown.methods.base import StageReport
from grown.methods.den import units
from grown.methods.den.shape import Shape, values_of
from grown.methods.masked.layers import Kernels
from grown.methods.shared.training import Guard, Training, Weights
from grown.methods.shared.weights import attach, cut, detach
from grown.nn.axes import Widths
from grown.nn.initial import Initializer
from grown.train.batches import Batches
from grown.train.evaluate import evaluate
from grown.train.statistics import estimate_statistics

if TYPE_CHECKING:
    from grown.methods.den.method import DEN

# Of the epochs: a selection trains one layer on what the others answer, the later steps go on from a trained network.
SHARES = {"train": 1.0, "select": 0.25, "retrain": 1.0, "expand": 0.5, "split": 0.5}

Free = dict[str, Tensor]  # by layer, which kernels learn (out, in)
Penalty = Callable[[nn.Module], Tensor]


class Course:
    """One task on one part of its images, from the network that the task before left."""

    def __init__(self, method: DEN, task: Task, part: Part, held_out: Part, recipe: Recipe) -> None:
        self.method, self.task, self.part, self.held_out, self.recipe = method, task, part, held_out, recipe
        self.shape = Shape(method.training.graph, method.training.channels)
        self.normalise = measure(part)
        self.settled = self.widths = method.training.widths
        self.before = values_of(method._begin(task))  # with norms and biases of the last task, and a new head
        self.now = self.before
        self.stages: list[StageReport] = []
        self.training: Training

    def run(self) -> Training:
        """Learn; returns the last training, whose network is the task's."""
        if not self.method.tasks:
            everything = {name: kernels.new_ones(kernels.shape[:2]) > 0 for name, kernels in self._kernels().items()}
            self._train("train", everything, self._sparsity(everything))
            return self.training
        self._retrain(self._select())
        drift = units.drifted(self.shape, self.now, self.before, self.widths, self.method.config.den_split)
        if self._loss() > self.method.config.den_loss:
            self._expand()
        if any(bool(flags.any()) for flags in drift):
            self._split(drift)
        return self.training

    # --- the paper's three steps ------------------------------------------------------------------------------------

    def _select(self) -> Free:
        """Train the head alone under L1; what leads to its nonzero weights is the task's sub-network."""
        strength = self.method.config.den_sparsity
        head = self.shape.graph.head.name

        def only_head(network: nn.Module) -> None:
            network.requires_grad_(False)
            network.get_submodule(head).requires_grad_(True)

        self._train("select", {}, lambda network: strength * self._head(network).abs().sum(), only_head)
        found = {**self.before, f"{head}.weight": self.now[f"{head}.weight"]}
        return units.connected(self.shape, found, self.widths)

    def _retrain(self, free: Free) -> None:
        """Train that sub-network, held to where it was; a step is never larger than the way back."""
        config = self.method.config
        drift = min(config.den_drift, 0.5 / self.recipe.rate)
        before = self.shape.widen(self.before, self.settled, self._room)
        anchors = {name: kernels.to(config.device) for name, kernels in self.shape.kernels(before).items()}

        def penalty(network: nn.Module) -> Tensor:
            kernels = self.shape.kernels(_weights(network, self.shape))
            terms = [(kernels[name] - anchor).square().sum() for name, anchor in anchors.items()]
            return drift * torch.stack(terms).sum() + config.den_sparsity * self._head(network).abs().sum()

        self._train("retrain", free, penalty)

    def _expand(self) -> None:
        """Add units behind each layer's, train them alone under L1 and group lasso, drop those that died."""
        config, groups = self.method.config, self.shape.channels.groups
        wide = tuple(
            width + (0 if group.fixed else math.ceil(config.den_units / group.quantum) * group.quantum)
            for group, width in zip(groups, self.widths, strict=True)
        )
        if wide == self.widths:
            return
        state = self.shape.widen(self.now, self.widths, wide)
        self._draw(state, wide)
        self.now, self.widths = state, wide
        free, room = self._new(), self._room
        sparsity = self._sparsity(free)

        def penalty(network: nn.Module) -> Tensor:
            lengths = units.incoming(self.shape, self.shape.kernels(_weights(network, self.shape)), room)
            new = [length[start:].sum() for length, start in zip(lengths, self.settled, strict=True)]
            return sparsity(network) + config.den_group * torch.stack(new).sum()

        self._train("expand", free, penalty)
        stay = units.alive(self.shape, self.now, wide, self.settled, config.den_group)
        self._take(self.shape.gather(self.now, wide, stay), tuple(len(which) for which in stay))

    def _split(self, drift: list[Tensor]) -> None:
        """Units that drifted too far are what they were again, their copies go on; what is new is trained once more."""
        flags = [
            torch.cat([mine, mine.new_zeros(width - len(mine))]) for mine, width in zip(drift, self.widths, strict=True)
        ]
        self.now, self.widths = units.split(self.shape, self.now, self.before, self.widths, self.settled, flags)
        free = self._new()
        self._train("split", free, self._sparsity(free))

    # --- what they are made of --------------------------------------------------------------------------------------

    def _kernels(self) -> Weights:
        return self.shape.kernels(self.now)

    @property
    def _room(self) -> Widths:
        """The widths in which a network trains: multiples that suit a device, where what is beyond its own stays zero.

        Nothing reads these channels and nothing feeds them, so that they have no gradients, and no penalty either.
        """
        groups, multiple = self.shape.channels.groups, self.method.config.width_multiple
        steps = [math.lcm(group.quantum, multiple) if group.silent and not group.fixed else 1 for group in groups]
        return tuple(math.ceil(width / step) * step for width, step in zip(self.widths, steps, strict=True))

    def _in_room(self, free: Free) -> Free:
        """Flags by kernel in these widths; what is beyond the network's own does not learn."""
        found = {}
        for name, flags in free.items():
            rows, columns = self.shape.banks[name].view(self._room, self.widths)
            found[name] = flags.new_zeros(self.shape.banks[name].extent(self._room))
            found[name][rows[:, None], columns] = flags
        return found

    def _new(self) -> Free:
        """Kernels that a new unit makes or reads."""
        new = [torch.arange(width) >= start for width, start in zip(self.widths, self.settled, strict=True)]
        free = {}
        for name, bank in self.shape.banks.items():
            rows, columns = self.shape.spread(bank, new)
            free[name] = rows[:, None] | columns
        return free

    def _draw(self, state: Weights, wide: Widths) -> None:
        """New units make something of what is there; nothing reads them yet, so that the network is what it was."""
        draw = Initializer(self.method.training.gains, self.method._seed(self.task), 1)
        kernels = self.shape.kernels(state)
        new = [torch.arange(width) >= start for width, start in zip(wide, self.settled, strict=True)]
        for name, bank in self.shape.banks.items():
            rows, _ = self.shape.spread(bank, new)
            kernels[name][rows] = draw.kernels(name, bank.extent(wide), bank.kernel, 1)[rows]

    def _head(self, network: nn.Module) -> Tensor:
        weight = network.get_submodule(self.shape.graph.head.name).weight  # another one while images are turned
        if not isinstance(weight, Tensor):
            raise TypeError("a head has a weight")
        return weight

    def _sparsity(self, free: Free) -> Penalty:
        """L1 on all that learns."""
        strength, device = self.method.config.den_sparsity, self.method.config.device
        kernels = self._kernels()
        weigh = {
            name: _over(flags, kernels[name]).to(device, torch.float32) for name, flags in self._in_room(free).items()
        }

        def penalty(network: nn.Module) -> Tensor:
            kernels = self.shape.kernels(_weights(network, self.shape))
            terms = [(weigh[name] * kernel.abs()).sum() for name, kernel in kernels.items()]
            return strength * (torch.stack(terms).sum() + self._head(network).abs().sum())

        return penalty

    def _train(
        self,
        name: str,
        free: Free,
        penalty: Penalty,
        prepare: Callable[[nn.Module], None] | None = None,
    ) -> None:
        """Train the free kernels, and all that is the task's own; then cut what the penalty left at nearly nothing."""
        began, method, config = time.perf_counter(), self.method, self.method.config
        recipe = dataclasses.replace(self.recipe, epochs=max(1, round(SHARES[name] * self.recipe.epochs)))
        room, learns = self._room, self._in_room(free)
        state = self.shape.widen(self.now, self.widths, room)
        network = self.shape.network(state, room).to(config.device).train().requires_grad_(True)
        for layer, kernels in self.shape.kernels(state).items():
            if name != "train":
                flags = learns.get(layer, torch.zeros(kernels.shape[:2], dtype=torch.bool))
                spread = _over(flags, kernels).expand_as(kernels).reshape(state[f"{layer}.weight"].shape)
                held = network.get_parameter(f"{layer}.weight").detach().clone()
                attach(network, f"{layer}.weight", Kernels(None, spread.contiguous().to(config.device), held))
        if prepare is not None:
            prepare(network)
        batches = Batches(self.part, self.normalise, recipe, config.device, config.seed, self.task.name, "plain", name)
        self.training = Training(
            self.task, self.part, self.held_out, self.normalise, recipe, network, batches, kernels={}, start={}
        )
        method._fit([self.training], [Guard(penalty=lambda: penalty(network))])
        detach(network, [f"{layer}.weight" for layer in self._kernels()])
        own = [torch.arange(width) for width in self.widths]
        self._take(self._cut(self.shape.gather(values_of(network), room, own), free), self.widths)
        self.stages.append(StageReport(name, recipe.epochs, None, time.perf_counter() - began))

    def _cut(self, state: Weights, free: Free) -> Weights:
        strength = self.method.config.den_sparsity
        for name, kernels in self.shape.kernels(state).items():
            if name in free:
                kernels.copy_(torch.where(_over(free[name], kernels), cut(kernels, strength), kernels))
        head = self.shape.head(state)
        head.copy_(cut(head, strength))
        return state

    def _take(self, state: Weights, widths: Widths) -> None:
        """Go on with these values: the last training's network has them."""
        self.now, self.widths = state, widths
        network = self.shape.network(state, widths).to(self.method.config.device)
        self.training = dataclasses.replace(self.training, network=network)

    def _loss(self) -> float:
        """The mean loss on the images that train, as the network will answer, above what label smoothing leaves."""
        network, smoothing = self.training.network, self.recipe.smoothing
        estimate_statistics(network, self.training.batches.inputs(epochs=2))
        floor = -math.log(1 - smoothing + smoothing / len(self.task.classes))
        return evaluate(network, self.part, self.normalise, self.method.config.device).loss - floor


def _weights(network: nn.Module, shape: Shape) -> Weights:
    """Weights as the network runs with them."""
    return {f"{node.name}.weight": _weight(network, node.name) for node in shape.graph.banked()}


def _weight(network: nn.Module, name: str) -> Tensor:
    weight = network.get_submodule(name).weight
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name} has no weight")
    return weight


def _over(flags: Tensor, kernels: Tensor) -> Tensor:
    """Flags per kernel, to be broadcast over the kernels' weights."""
    return flags.view(*flags.shape, *([1] * (kernels.ndim - 2)))
