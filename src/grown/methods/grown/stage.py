"""One task being learned, step by step: train `network`, `expand`, `settle`, `commit`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from grown.config import Recipe
from grown.data.normalisation import Normalisation, measure
from grown.data.part import Part
from grown.data.task import Task
from grown.errors import ConfigError
from grown.growth import budget
from grown.methods.base import StageReport, TaskReport, parts_of, probe
from grown.methods.grown.record import Record
from grown.methods.grown.related import most_related, quieten, start_from
from grown.methods.grown.settled import Settled, narrow_state, silence
from grown.nn.axes import Widths
from grown.nn.bank import as_stored
from grown.nn.initial import Initializer
from grown.nn.layers import MaskSettings
from grown.nn.masks import Noise
from grown.nn.network import GrowingNetwork
from grown.nn.plain import build, fill
from grown.nn.structure import find_structure
from grown.train.evaluate import evaluate
from grown.train.statistics import estimate_statistics

if TYPE_CHECKING:
    from grown.methods.grown.learner import Learner


class Stage:
    """A task between `learner.open(task)` and `commit()`.

    Train `network` with any loop and loss: `parameter_groups()` are what learns, `penalty()` is added to the loss.
    """

    network_type: ClassVar[type[GrowingNetwork]] = GrowingNetwork

    def __init__(self, learner: Learner, task: Task, *, all_data: bool = False, related: Record | None = None) -> None:
        config = learner.config
        self.all_data = all_data  # also train on the held-out images: only once they have decided
        self.learner = learner
        self.task = task
        self.number = learner.next_number
        self.first = not learner.records
        self.name = "expand" if self.first and config.grow else "reuse"
        self.fit: Part
        self.held_out: Part
        self.fit, self.held_out = parts_of(task, config)
        self.fit = task.train if all_data else self.fit
        self.normalise: Normalisation = measure(self.fit)
        self.reports: list[StageReport] = []
        self.related: Record | None = None  # the earlier task that this one starts as
        self.rounds = 0  # times that candidates were appended
        self.expansions = 0  # of them, those that a missed target asked for
        self.share = 1.0  # of the recipe's epochs that its trainings take
        self._opened = time.perf_counter()
        self._initializer = Initializer(learner.gains, config.seed, self.number)
        self._before = learner.widths  # the widths that earlier tasks see
        self._settings = self._mask_settings()
        widths = learner.seed_widths() if self.first else learner.widths
        self.network = self._make_network(widths)
        if not self.first and config.start == "related":
            self.related = related if related is not None else most_related(self)
            start_from(self, self.related)
        if self.first and config.grow:
            self._append_candidates(self._cap() - self._open_parameters())

    def _mask_settings(self) -> MaskSettings:
        config = self.learner.config
        gumbel = config.mask == "gumbel"
        start = config.gumbel_start if gumbel else config.score_start
        return MaskSettings(
            kind=config.mask,
            select=config.select,
            sparse=config.sparse,
            soft=config.soft_select,
            start=start,
            new_start=start if config.new_start is None else config.new_start,
            noise=Noise(config.temperature, 1.0 if gumbel else 0.0),
        )

    def _make_network(self, widths: Widths) -> GrowingNetwork:
        learner = self.learner
        network = self.network_type(
            learner.graph,
            learner.channels,
            learner.banks,
            learner.widths,
            widths,
            len(self.task.classes),
            self._settings,
            self._initializer,
            learner.config.retrain or self.first,
        )
        return network.to(learner.config.device)

    @property
    def recipe(self) -> Recipe:
        """The recipe of this stage's trainings: a shorter one where they only decide."""
        config = self.learner.config
        number = len(self.learner.records) + 1
        recipe = config.recipe_of(number) if self.all_data else config.deciding(number)
        return dataclasses.replace(recipe, epochs=max(1, round(self.share * recipe.epochs)))

    def anew(self, expansions: int, *, all_data: bool = False) -> Stage:
        """The same task from its start, expanded so many times from the beginning; on all training images if asked."""
        learner = self.learner
        stage = type(self)(learner, self.task, all_data=all_data, related=self.related)
        for _ in range(expansions):
            stage.expand()
        stage.name = "refit" if all_data else stage.name
        stage.reports, stage._opened = self.reports, self._opened
        learner.stage = stage
        return stage

    # --- for a loop ------------------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What learns, by kind, ready for an optimizer: weights (with the head), norms (with biases), scores."""
        weights: list[nn.Parameter] = [self.network.head.weight]
        norms: list[nn.Parameter] = [] if self.network.head.bias is None else [self.network.head.bias]
        scores: list[nn.Parameter] = list(self.network.gates.values())
        for layer in self.network.masked().values():
            weights += [layer.weight] if layer.weight is not None else []
            scores += [layer.scores] if layer.scores is not None else []
            norms += [layer.bias] if layer.bias is not None else []
        for node in self.learner.graph.norms():
            norms += list(self.network.layer(node.name).parameters())
        groups = {"weights": weights, "norms": norms, "scores": scores}
        return [{"name": name, "params": params} for name, params in groups.items() if params]

    def penalty(self) -> Tensor:
        """What Eq. 3 and 8 add to the loss: the growth's expected L0, and a density penalty if one is set."""
        config = self.learner.config
        total = self.network.head.weight.new_zeros(())
        if self.network.gates:
            total = total + budget.growth_penalty(self.network, self._prices, config.growth_weight)
        if config.density is not None and config.sparse:
            total = total + budget.density_penalty(self.network, config.density, config.density_weight)
        return total

    @property
    def has_penalty(self) -> bool:
        """Whether `penalty()` can be other than zero in this stage."""
        config = self.learner.config
        return bool(self.network.gates) or (config.density is not None and config.sparse)

    def anneal(self, progress: float) -> None:
        """Set the Gumbel masks' temperature and noise for this share (0 to 1) of a training."""
        config = self.learner.config
        if config.mask == "gumbel":
            noise = self._settings.noise
            noise.temperature = config.temperature + progress * (config.temperature_end - config.temperature)
            noise.scale = max(0.0, 1.0 - progress)

    # --- growth ----------------------------------------------------------------------------------------------------

    def _cap(self) -> float:
        """Parameters that the open network may have in this task."""
        learner, config = self.learner, self.learner.config
        if self.first:
            return config.seed_size * learner.base_parameters
        in_all = config.max_size * learner.base_parameters
        return min(
            in_all,
            budget.parameters(learner.banks, self._before) + config.task_size * learner.base_parameters,
        )

    def _open_parameters(self) -> int:
        return budget.parameters(self.learner.banks, budget.open_widths(self.network))

    def expand(self) -> bool:
        """Append candidate channels behind gates (Eq. 8), if the caps allow; scores and kernels go on as they are."""
        if not self._append_candidates(self._room()):
            return False
        self.name = "expand"
        self.expansions += 1
        return True

    @property
    def has_room(self) -> bool:
        """Whether the caps allow an expansion."""
        return self._with_candidates(self._room()) is not None

    def _room(self) -> float:
        """Parameters that one expansion may add now."""
        step = self.learner.config.step_size * self.learner.base_parameters
        return min(self._cap() - self._open_parameters(), step)

    def _with_candidates(self, room: float) -> Widths | None:
        learner, counted = self.learner, budget.open_widths(self.network)
        return budget.widths_with_candidates(
            learner.channels, learner.banks, self.network.widths, counted, max(0.0, room), learner.config.shape
        )

    def _append_candidates(self, room: float) -> bool:
        learner, config = self.learner, self.learner.config
        counted, wide = budget.open_widths(self.network), self._with_candidates(room)
        if wide is None:
            return False
        self.rounds += 1
        before = self.network.widths
        start = config.gumbel_start if config.mask == "gumbel" else config.gate_start
        self.network.widen(wide, start if config.growth == "open" else -start, self._initializer, self.rounds)
        if self.related is not None and config.growth == "open":  # a closed gate is quiet, and opens by its kernels
            quieten(self, self.related, before)
        costs = budget.channel_costs(learner.channels, learner.banks, counted)
        whole = max(1.0, self._cap() - budget.parameters(learner.banks, self.network.settled))
        self._prices = budget.prices(self.network, costs, whole)
        return True

    @property
    def size_x(self) -> float:
        """The open network's kernels over 1x: the grow ratio."""
        return self._open_parameters() / self.learner.base_parameters

    # --- the end ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def settle(self, batches: Iterable[Tensor] | None = None) -> Settled:
        """Cut what is idle and build the plain network; estimate its norms' statistics again over these inputs.

        The network in training is left as it is, but for idle channels, which are silenced.
        """
        learner, network = self.learner, self.network
        budget.close_over_cap(network, max(self._cap(), budget.parameters(learner.banks, network.settled)))
        layers = network.masked()
        soft = None
        picked = {name: layer.picked().cpu() for name, layer in layers.items()}
        if self._settings.soft:
            values = {name: layer.soft_values().cpu() for name, layer in layers.items()}
            soft = {name: torch.where(picked[name], torch.ones(()), values[name]) for name in layers}
            picked = {name: picked[name] | (values[name] > 0) for name in layers}
        structure = find_structure(
            learner.graph, learner.channels, learner.banks, network.widths, picked, network.closed_channels()
        )
        silence(network, structure)
        stored = learner.config.kernel_format
        kernels = {name: as_stored(layer.kernels(), stored).cpu() for name, layer in layers.items()}
        plain = build(learner.graph, learner.channels, structure.narrow(), len(self.task.classes))
        plain = fill(plain, narrow_state(network, structure, kernels, soft), learner.config.device)
        if batches is not None:
            estimate_statistics(plain, batches)
        val = evaluate(plain, self.held_out, self.normalise, learner.config.device)
        return Settled(plain, structure, kernels, soft, self._before, val)

    def commit(
        self, settled: Settled | None = None, target: float | None = None, *, remember: bool = False
    ) -> TaskReport:
        """Make the task permanent: drop closed channels, give used kernels their owner, write the record.

        With `remember` its images are remembered too (see `Learner.remember`), so that the size has all in it.
        """
        learner = self.learner
        if learner.stage is not self:
            raise ConfigError(f"task {self.task.name!r} was committed already, or another task was opened after it")
        final = settled if settled is not None else self.settle()
        record = self._claim(final, target)
        learner.records[record.name] = record
        record.probe = probe(learner.extract(record.name), learner.graph.input_shape)
        learner.next_number += 1
        learner.stage = None
        if remember:
            learner.remember(self.task)
        return TaskReport(
            name=record.name,
            classes=record.classes,
            target=target,
            val=final.val.accuracy,
            stages=tuple(self.reports),
            grew=record.grew,
            new_kernels=record.new_kernels,
            size=learner.size(),
            seconds=time.perf_counter() - self._opened,
        )

    def _claim(self, final: Settled, target: float | None) -> Record:
        """Move what the task uses into the banks; what is left is the record."""
        learner, structure = self.learner, final.structure
        # Earlier channels all stay in the banks; of the new ones only those that this task keeps.
        stay = [flags.clone() for flags in structure.kept]
        for group, flags, width in zip(learner.channels.groups, stay, self._before, strict=True):
            flags[:width] = True
            # Whole units stay, so that widths remain multiples of them; a free kernel costs nothing.
            if not group.fixed:
                units = flags[width:].view(-1, group.unit).any(1)
                flags[width:] = units.repeat_interleave(group.unit)
        widths = tuple(int(flags.sum()) for flags in stay)
        positions = [flags.nonzero().flatten() for flags in stay]
        new_kernels = {"released": 0, "grown": 0}
        active, soft = {}, {}
        for name, bank in learner.banks.items():
            rows, columns = bank.at(structure.widths, positions)
            active[name] = structure.active[name][rows][:, columns]
            if final.soft is not None:
                soft[name] = final.soft[name][rows][:, columns]
            bank.grow(self._before, widths)
            mine = active[name] & (bank.owner == 0)
            bank.claim(final.kernels[name][rows][:, columns], mine, self.number)
            old_rows, old_columns = bank.view(widths, self._before)
            released = int(mine[old_rows[:, None], old_columns].sum())
            new_kernels["released"] += released
            new_kernels["grown"] += int(mine.sum()) - released
        learner.widths = widths
        kernel_names = {f"{node.name}.weight" for node in learner.graph.banked()}
        plain = final.network.cpu().state_dict()
        return Record(
            number=self.number,
            name=self.task.name,
            classes=self.task.classes,
            widths=widths,
            kept=[flags[where] for flags, where in zip(structure.kept, positions, strict=True)],
            active=active,
            soft=soft if final.soft is not None else None,
            own={key: value.clone() for key, value in plain.items() if key not in kernel_names},
            normalisation=self.normalise,
            probe=torch.zeros(0),
            target=target,
            val=final.val.accuracy,
            test=None,
            grew=final.grew,
            new_kernels=new_kernels,
        )
