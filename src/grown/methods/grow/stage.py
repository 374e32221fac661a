"""One task of Grow: candidates beyond what the budget pays for, and a penalty that draws to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from grown.data.task import Task
from grown.growth import budget
from grown.methods.grow.network import ContinuousNetwork
from grown.methods.grown.record import Record
from grown.methods.grown.stage import Stage
from grown.nn.axes import Widths
from grown.nn.network import GrowingNetwork
from grown.train.batches import steps_of

if TYPE_CHECKING:
    from grown.methods.grow.method import Grow


class GrowStage(Stage):
    """Every task grows, from its first step on; old kernels are frozen and all in use."""

    learner: Grow
    network: ContinuousNetwork
    network_type: ClassVar[type[GrowingNetwork]] = ContinuousNetwork

    def __init__(self, learner: Grow, task: Task, *, all_data: bool = False, related: Record | None = None) -> None:
        super().__init__(learner, task, all_data=all_data, related=related)
        if not self.first:  # a first task has candidates already
            self._append_candidates(self._cap() - self._open_parameters())
        self.name = "grow"

    def _cap(self) -> float:
        """What a later task may have: an equal share of what is left for the tasks to come, at most task_size."""
        if self.first:
            return super()._cap()
        learner, config = self.learner, self.learner.config
        now, base = budget.parameters(learner.banks, self._before), learner.base_parameters
        share = max(0.0, config.max_size * base - now) / learner.tasks_to_come
        return now + min(config.task_size * base, share)

    def _append_candidates(self, room: float) -> bool:
        """Offer more candidates than there is room for; none of them is decided yet (s = 0)."""
        learner, config, network = self.learner, self.learner.config, self.network
        counted = budget.open_widths(network)
        paid = budget.widths_with_candidates(
            learner.channels, learner.banks, counted, counted, max(0.0, room), config.shape
        )
        if paid is None:
            return False
        self.rounds += 1
        network.widen(self._offered(counted, paid), 0.0, self._initializer, self.rounds)
        network.slope = config.grow_beta
        network.span = self.recipe.epochs * steps_of(self.fit, self.recipe)
        # What a channel costs grows with the channels beside it: the mean between none of them and all.
        ends = [budget.channel_costs(learner.channels, learner.banks, widths) for widths in (counted, paid)]
        means = [(low + high) / 2 for low, high in zip(*ends, strict=True)]
        self._prices = budget.prices(network, means, room)
        return True

    def _offered(self, counted: Widths, paid: Widths) -> Widths:
        """The present widths and, for each channel that is paid for, so many candidates."""
        offer = self.learner.config.grow_offer
        return tuple(
            wide + round(offer * (p - c) / group.unit) * group.unit
            for wide, c, p, group in zip(self.network.widths, counted, paid, self.learner.channels.groups, strict=True)
        )

    def penalty(self) -> Tensor:
        """lambda ||sigma(beta s)||_1 in parameters over the budget; lambda is scaled by the gap to the budget.

        Beyond the budget it closes channels, below it opens them.
        """
        if not self.network.gates:
            return self.network.head.weight.new_zeros(())
        expected = budget.total(self.network, self._prices, self.network.openness())
        return self.learner.config.grow_weight * (expected.detach() - 1.0) * expected
