"""One set of shared kernels, and for each task a mask on them and a sparse part of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grown import seeds
from grown.data.task import Task
from grown.errors import FileError
from grown.io import flat
from grown.io.fields import Fields
from grown.methods import check
from grown.methods.apd.consolidation import consolidate
from grown.methods.apd.decomposition import Decomposition, compose, decompose, masked, parts
from grown.methods.apd.earlier import Earlier, best_tau
from grown.methods.apd.sparse import Sparse
from grown.methods.plain_method import PlainRecord
from grown.methods.shared import SharedMethod
from grown.methods.shared.training import ASIDE, Guard, Training, Weights
from grown.methods.shared.weights import cut
from grown.nn import bits
from grown.nn.bank import FORMATS, as_stored
from grown.nn.graph import Graph


class APD(SharedMethod):
    """theta_t = shared * sigma(v_t) + tau_t. All parts of all tasks go on learning; a penalty holds earlier theta."""

    name: ClassVar[str] = "apd"

    def _adopt(self, graph: Graph, gains: dict[str, float]) -> None:
        super()._adopt(graph, gains)
        self._parts = Decomposition(self._kernel_shapes)
        self._settled: dict[int, tuple[Weights, Decomposition]] = {}  # by training, before one is committed
        self._mask_shapes = {key: shape[:1] for key, shape in self._kernel_shapes.items()}

    # --- learning --------------------------------------------------------------------------------------------------

    def _trainings(self, task: Task) -> list[Training]:
        self._settled = {}
        trainings = super()._trainings(task)
        for training in trainings:
            decompose(training.network, self._kernel_shapes)
        return trainings

    def _groups(self, network: nn.Module) -> list[dict[str, Any]]:
        """Weight decay is for the shared weights and the head: tau has its own penalty, and masks are no weights."""
        aside = list(network.get_submodule(ASIDE).parameters()) if hasattr(network, ASIDE) else []
        adaptive = parts(network, self._kernel_shapes).values()
        own = {id(value) for values in (aside, *(part.parameters() for part in adaptive)) for value in values}
        weights = [value for value in network.parameters() if value.ndim > 1 and id(value) not in own]
        others = [value for value in network.parameters() if value.ndim <= 1 or id(value) in own]
        return [{"name": "weights", "params": weights}, {"name": "norms", "params": others}]

    def _guard(self, training: Training) -> Guard:
        config, adaptive = self.config, parts(training.network, self._kernel_shapes).values()
        earlier = None
        if self._records:
            rest = [flat.split(name, self._rest(name), self._kernel_shapes) for name in self._records]
            earlier = Earlier(list(self._parts.masks.values()), rest, training.kernels)

        def penalty() -> Tensor:
            total = config.apd_sparsity * torch.stack([module.tau.abs().sum() for module in adaptive]).sum()
            return total if earlier is None else total + earlier.penalty(config.apd_sparsity, config.apd_drift)

        return Guard(penalty=penalty, aside=earlier)

    def _rest(self, task: str) -> Tensor:
        """theta* without what is locally shared, as one vector: what the shared weights and tau are to make up."""
        return flat.flatten(self._kernels_of(task), self._kernel_shapes) - self._parts.locally(task)

    def _round(self, training: Training, guard: Guard) -> None:
        """All parts as a file has them: the new task's, those of earlier ones, and every so often what they share."""
        config, keys = self.config, self._kernel_shapes
        kind, task = FORMATS[config.kernel_format], training.task.name
        trained = {key: kernel.detach().cpu().clone() for key, kernel in training.kernels.items()}
        shared = {key: as_stored(kernel, config.kernel_format) for key, kernel in trained.items()}
        new = Decomposition(keys, group=dict(self._parts.group), local=list(self._parts.local))
        for number, name in enumerate(self._records):
            if not isinstance(guard.aside, Earlier):
                raise TypeError("a training of APD has its earlier tasks beside it")
            new.masks[name] = guard.aside.values(number, keys)
            left_over = self._rest(name) - flat.flatten(_masked(shared, new.masks[name]), keys)
            new.tau[name] = Sparse.of(best_tau(left_over, config.apd_sparsity, config.apd_drift), kind)
        adaptive = parts(training.network, keys)
        new.masks[task] = {key: adaptive[key].v.detach().cpu().clone() for key in keys}
        tau = flat.flatten({key: adaptive[key].tau.detach().cpu() for key in keys}, keys)
        new.tau[task] = Sparse.of(cut(tau, config.apd_sparsity), kind)
        rounds, left = divmod(len(new.tau), config.apd_consolidate)
        if rounds and not left:
            groups = min(rounds * config.apd_groups, len(new.tau))
            draw = seeds.generator(config.seed, "consolidate", task)
            new = consolidate(new, groups, config.apd_gap, kind, draw)
        compose(training.network, new.theta(shared, task))
        self._settled[id(training)] = (shared, new)

    def _share(self, training: Training, guard: Guard, kernels: Weights) -> None:  # noqa: ARG002
        self._shared, self._parts = self._settled[id(training)]
        self._settled = {}

    def _kernels_of(self, task: str) -> Weights:
        return self._parts.theta(self._shared, task)

    # --- files -----------------------------------------------------------------------------------------------------

    def _kept(self) -> dict[str, Tensor]:
        found, kind = self._parts, FORMATS[self.config.kernel_format]
        tensors = {}
        for number, name in enumerate(self._records, start=1):
            tensors[f"task/{number}/mask"] = flat.flatten(found.masks[name], self._mask_shapes)
        stored = {f"task/{number}": tau for number, tau in enumerate(found.tau.values(), start=1)}
        stored |= {f"local/{number}": local for number, local in enumerate(found.local, start=1)}
        for prefix, sparse in stored.items():
            tensors[f"{prefix}/where"], tensors[f"{prefix}/kernels"] = sparse.where, sparse.values.to(kind)
        return tensors

    def _entry(self, number: int, name: str, record: PlainRecord) -> dict[str, Any]:
        group = self._parts.group.get(name)
        return {**super()._entry(number, name, record), "group": None if group is None else group + 1}

    def _kept_shapes(self, tasks: list[Fields]) -> dict[str, tuple[Any, ...]]:
        self._read_groups(tasks)
        shapes: dict[str, tuple[Any, ...]] = {}
        prefixes = [f"task/{number}" for number in range(1, 1 + len(tasks))]
        for prefix in prefixes:
            shapes[f"{prefix}/mask"] = (torch.float32, None)
        for prefix in (*prefixes, *(f"local/{number + 1}" for number in set(self._parts.group.values()))):
            shapes[f"{prefix}/where"] = (torch.uint8, bits.packed_length(self._parts.length))
            shapes[f"{prefix}/kernels"] = (check.KERNEL_TYPES, None)
        return shapes

    def _read_groups(self, tasks: list[Fields]) -> None:
        """Groups are numbered from 1 without a gap, and have two tasks at least."""
        self._parts.group = {
            task.text("name"): task.whole("group", 1, len(tasks)) - 1 for task in tasks if task.any("group") is not None
        }
        numbers = list(self._parts.group.values())
        wanted = range(len(set(numbers)))
        if any(numbers.count(number) < 2 for number in wanted):
            raise FileError("its groups of tasks are not numbered from 1, or one has a single task")

    def _load_kept(self, tensors: Mapping[str, Tensor], tasks: list[Fields]) -> None:
        found = self._parts
        for number, task in enumerate(tasks, start=1):
            prefix, name = f"task/{number}", task.text("name")
            found.masks[name] = flat.split(f"{prefix}/mask", tensors[f"{prefix}/mask"], self._mask_shapes)
            found.tau[name] = self._sparse(prefix, tensors)
        found.local = [self._sparse(f"local/{number + 1}", tensors) for number in sorted(set(found.group.values()))]

    def _sparse(self, prefix: str, tensors: Mapping[str, Tensor]) -> Sparse:
        found = Sparse(tensors[f"{prefix}/where"], tensors[f"{prefix}/kernels"])
        found.check(prefix, self._parts.length)
        return found


def _masked(shared: Weights, masks: Weights) -> Weights:
    return {key: masked(value, masks[key]) for key, value in shared.items()}
