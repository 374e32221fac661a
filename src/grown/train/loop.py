"""The one training loop: every method, every stage, every device.

On a GPU the step is captured once as a CUDA graph and replayed: it fetches its own batch, counts its own steps and
reads its own learning rate from the device, so that the host only says "again". On the CPU the same step runs as it
is: `PlainSteps` is also the reference that the captured one is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from grown import seeds
from grown.config import Recipe
from grown.errors import FileError
from grown.io import journal
from grown.nn import accelerate, aside
from grown.train import snapshots, turns
from grown.train.batches import Batch, Batches
from grown.train.fuse import Fusion
from grown.train.halves import Halves
from grown.train.memory import explained
from grown.train.optimizers import SGD, Adam, Optimizer
from grown.train.schedule import factor

WARM_STEPS = 3  # steps that run as they are before one is captured


@dataclass(frozen=True)
class Epoch:
    """What one epoch ended with: its number from 1, and the mean training loss."""

    number: int
    epochs: int
    loss: float


@dataclass(frozen=True)
class Work:
    """One training: what is trained, on what, how, and who is told.

    What a method adds runs inside the step, which a GPU captures: tensors of fixed shapes, nothing read back. What of
    it must survive between epochs is a part of the network's state.
    """

    network: nn.Module
    groups: list[dict[str, Any]]  # by name: weights, norms, scores
    batches: Batches
    recipe: Recipe
    seed: int = 0
    penalty: Callable[[], Tensor] | None = None
    anneal: Callable[[float], None] | None = None
    after_epoch: Callable[[Epoch], None] | None = None
    beside: tuple[Batches, ...] = ()  # a batch of each comes with every step; as many steps an epoch as `batches`
    extra_loss: Callable[[Batch, Sequence[Batch]], Tensor] | None = None  # of the step's batch and of those beside it
    around_update: Callable[[], AbstractContextManager[None]] | None = None  # entered with gradients, left without
    score_schedule: str | None = None  # of the scores' rate; as the recipe's if None
    is_over: Callable[[], bool] | None = None  # asked after each epoch, by the network's state alone; ends it early

    @property
    def in_half(self) -> bool:
        """Whether convolutions run in half precision."""
        return self.batches.device.type == "cuda" and self.recipe.precision == "auto"

    def __post_init__(self) -> None:
        if any(batches.steps != self.batches.steps for batches in self.beside):
            raise ValueError("batches that come beside others have as many steps an epoch")


def fit(work: Work, capture: bool = True) -> None:
    """Train the parameter groups for the recipe's epochs."""
    on_gpu = work.batches.device.type == "cuda"
    # A captured step reads from a whole epoch on the device, which is not for images that stay on disk.
    captured = on_gpu and capture and work.anneal is None and work.batches.resident
    recipe, device = work.recipe, work.batches.device
    entry = journal.claim()
    with explained(recipe, device), _random_numbers(device, work.seed), _autotuned(on_gpu):
        steps = CapturedSteps(work) if captured else PlainSteps(work)
        done = go_on(steps, entry)
        for number in range(done + 1, recipe.epochs + 1):
            work.network.train()
            if work.anneal is not None:
                work.anneal((number - 1) / recipe.epochs)
            loss = steps.epoch(number)
            if work.after_epoch is not None:
                work.after_epoch(Epoch(number, recipe.epochs, loss))
            last = _is_last(work, number)
            if entry is not None:
                entry.keep(recipe.epochs if last else number, recipe.epochs, partial(kept, steps, final=last))
            if last:
                break
        steps.finish()


def _is_last(work: Work, number: int) -> bool:
    """Whether a training ends with this epoch: its recipe does, or it is over before."""
    return number == work.recipe.epochs or (work.is_over is not None and work.is_over())


def go_on(steps: PlainSteps | CapturedSteps, entry: journal.Entry | None) -> int:
    """Take up what was kept of a training; returns the epochs that it has behind it."""
    snapshot = entry.read() if entry is not None else None
    if entry is None or snapshot is None:
        return 0
    if snapshot.epochs != steps.recipe.epochs:
        raise FileError(f"a training of {snapshot.epochs} epochs was kept, but this one has {steps.recipe.epochs}")
    snapshots.restore(snapshot.tensors, steps.work.network, steps.optimizers, steps.batches.device)
    steps.skip(snapshot.epoch)
    entry.taken()
    return snapshot.epoch


def kept(steps: PlainSteps | CapturedSteps, final: bool) -> dict[str, Tensor]:
    """What a training goes on from; once it ended, only the network."""
    return snapshots.take(steps.work.network, [] if final else steps.optimizers, steps.batches.device)


def fit_together(works: list[Work], lanes: int) -> None:
    """Independent trainings; on a GPU so many of them at once, each on a stream of its own.

    One small training leaves most of a GPU idle. A training that draws random numbers on the device (dropout) comes out
    as deterministic as alone, but not the same as alone.
    """
    if not all(work.batches.device.type == "cuda" and work.batches.resident for work in works):
        for work in works:
            fit(work)
        return
    if not works:
        return
    device = works[0].batches.device
    with explained(works[0].recipe, device, lanes), _random_numbers(device, works[0].seed), _autotuned(True):
        _side_by_side(works, lanes)


def _side_by_side(works: list[Work], lanes: int) -> None:
    """So many trainings at a time, a step of each in turn."""
    waiting = list(works)
    running: list[_Lane] = []
    while waiting or running:
        while waiting and len(running) < lanes:
            lane = _Lane(waiting.pop(0))
            running += [] if lane.is_done else [lane]
        for lane in running:
            lane.begin()
        for _ in range(max((lane.left for lane in running), default=0)):
            for lane in running:
                lane.advance()
        for lane in running:
            lane.steps.look_ahead()
        for lane in running:
            lane.end()
        running = [lane for lane in running if not lane.is_done]


class _Lane:
    """A training that shares the GPU with others: its epochs are driven from outside, step by step."""

    def __init__(self, work: Work) -> None:
        self.work = work
        work.network.train()
        if work.batches.device.type == "cuda":
            torch.cuda.synchronize()  # kernels are timed and steps captured while nothing else runs
        self.steps = CapturedSteps(work, shared=True)
        self.entry = journal.claim()
        self.number = 1 + go_on(self.steps, self.entry)
        self.left = 0
        self._began = False  # the epoch of this number
        if self.is_done:
            self.steps.finish()
            return
        self.begin()
        while self.left and not self.steps.is_captured:
            self.advance()

    @property
    def is_done(self) -> bool:
        return self.number > self.work.recipe.epochs

    def begin(self) -> None:
        """Begin an epoch, unless it has begun."""
        if not self._began:
            self._began = True
            self.work.network.train()
            self.steps.begin(self.number)
            self.left = self.work.batches.steps

    def advance(self) -> None:
        """One step of the epoch, if one is left."""
        if self.left:
            self.steps.step()
            self.left -= 1

    def end(self) -> None:
        """End the epoch, and after the last one the training."""
        loss = self.steps.end()
        self._began = False
        if self.work.after_epoch is not None:
            self.work.after_epoch(Epoch(self.number, self.work.recipe.epochs, loss))
        epochs, last = self.work.recipe.epochs, _is_last(self.work, self.number)
        self.number = epochs if last else self.number
        if self.entry is not None:
            self.entry.keep(self.number, epochs, partial(kept, self.steps, final=last))
        self.number += 1
        if self.is_done:
            self.steps.finish()


def loss_of(
    work: Work, batch: Batch, beside: Sequence[Batch] = (), run: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The loss to descend, and the part of it that is cross-entropy; `run` stands for the network if given."""
    recipe = work.recipe
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if work.in_half else nullcontext():
        logits = (work.network if run is None else run)(batch.x).float()
        extra = work.extra_loss(batch, beside) if work.extra_loss is not None else None
    loss = F.cross_entropy(logits, batch.labels, label_smoothing=recipe.smoothing)
    if batch.others is not None and batch.share is not None:
        mixed = F.cross_entropy(logits, batch.others, label_smoothing=recipe.smoothing)
        loss = loss + batch.share * (mixed - loss)
    if recipe.turns and recipe.agree > 0:
        loss = loss + recipe.agree * turns.disagreement(logits)
    entropy = loss.detach()
    if extra is not None:
        loss = loss + extra
    return (loss if work.penalty is None else loss + work.penalty()), entropy


def update(work: Work, optimizers: list[Optimizer]) -> None:
    """Let the gradients change the parameters, and be gone."""
    with work.around_update() if work.around_update is not None else nullcontext():
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


class PlainSteps:
    """Steps as they are."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.batches, self.recipe = work.batches, work.recipe
        self.optimizers = make_optimizers(work.groups, work.recipe)
        self.total = work.recipe.epochs * work.batches.steps
        self._fusion = Fusion(work.network, on_cpu=True) if work.batches.device.type == "cpu" else None

    def skip(self, epochs: int) -> None:
        """These epochs are done; nothing here counts them."""

    def epoch(self, number: int) -> float:
        """One epoch; returns its mean loss."""
        for batches in (self.batches, *self.work.beside):
            batches.begin(number)
        total = torch.zeros((), device=self.batches.device)
        for step in range(self.batches.steps):
            for optimizer, schedule in zip(self.optimizers, schedules(self.work), strict=False):
                overall = (number - 1) * self.batches.steps + step
                set_rates([optimizer], factor(self.recipe, overall, self.total, schedule))
            beside = [batches.at(step) for batches in self.work.beside]
            loss, entropy = loss_of(self.work, self.batches.at(step), beside)
            loss.backward()  # type: ignore[no-untyped-call]
            update(self.work, self.optimizers)
            total += entropy
        return float(total) / self.batches.steps

    def finish(self) -> None:
        """The network is as it was, but trained."""
        if self._fusion is not None:
            self._fusion.undo()


class CapturedSteps:
    """Steps as replays of one CUDA graph; the device is not waited for inside an epoch.

    An epoch's images are augmented together before it begins, into memory that the graph reads from.
    """

    def __init__(self, work: Work, shared: bool = False) -> None:
        self.work = work
        self.batches, self.recipe = batches, recipe = work.batches, work.recipe
        device = batches.device
        if device.type == "cuda":
            work.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizers = make_optimizers(work.groups, recipe)
        self._fusion = Fusion(work.network, on_cpu=device.type == "cpu")
        self._halves = Halves(work.network) if _is_plain(work) else None
        self._rates = _rates_on_device(self.optimizers, device)
        steps = recipe.epochs * batches.steps
        self._factors = torch.tensor(
            [[factor(recipe, step, steps, schedule) for step in range(steps)] for schedule in schedules(work)],
            device=device,
        )  # (optimizers, steps)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)  # in the epoch
        self._overall = torch.zeros(1, dtype=torch.int64, device=device)
        self._total = torch.zeros((), device=device)
        self._epoch: dict[str, Tensor] = {}
        self._number = self._fetched = 0  # the epoch that was begun, and the one whose images are in place
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = 0
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        # Alone on a GPU, a masked network's small kernels run beside each other; lanes fill it as it is.
        apart = device.type == "cuda" and not shared and accelerate.fused() is not None
        self._side: Any = torch.cuda.Stream(device) if apart else None  # type: ignore[no-untyped-call]
        self._gates = getattr(work.network, "gate_log", None)
        if self._gates is not None:
            self._gates.begin(batches.steps)

    def _fetch(self, number: int) -> None:
        """Augment a whole epoch into place, that of each part."""
        if self._fetched == number:
            return
        self._fetched = number
        for part, batches in enumerate((self.batches, *self.work.beside)):
            batches.begin(number)
            self._fetch_part(f"{part}/", batches.whole())

    def _fetch_part(self, part: str, whole: Batch) -> None:
        """A row per step, images channels-last."""
        half = self.recipe.precision == "auto" and whole.x.ndim == 4
        x = whole.x.permute(0, 2, 3, 1) if whole.x.ndim == 4 else whole.x
        rows = {"x": x.to(torch.bfloat16) if half else x, "labels": whole.labels}
        if whole.others is not None:
            rows["others"] = whole.others
        for name, values in rows.items():
            self._place(part + name, values.reshape(self.batches.steps, -1, *values.shape[1:]))
        if whole.share is not None:
            self._place(part + "share", whole.share)

    def _place(self, name: str, values: Tensor) -> None:
        if name in self._epoch:
            self._epoch[name].copy_(values)
        else:
            self._epoch[name] = values.contiguous()

    def _batch(self, number: int) -> Batch:
        part = f"{number}/"
        row = {
            name.removeprefix(part): values.index_select(0, self._step).squeeze(0)
            for name, values in self._epoch.items()
            if name.startswith(part)
        }
        x = row["x"].permute(0, 3, 1, 2) if row["x"].ndim == 4 else row["x"]
        return Batch(accelerate.channels_first(x), row["labels"], row.get("others"), row.get("share"))

    def _once(self) -> None:
        shares = self._factors.index_select(1, self._overall)  # (optimizers, 1)
        for (rate, full), share in zip(self._rates, shares, strict=False):
            rate.copy_((full * share).squeeze(0))
        batch, *beside = (self._batch(part) for part in range(1 + len(self.work.beside)))
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        with aside.beside(self._side):
            loss, entropy = loss_of(self.work, batch, beside, self._halves)
            loss.backward()  # type: ignore[no-untyped-call]
            if self._halves is not None:
                self._halves.collect()
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        update(self.work, self.optimizers)
        self._total += entropy
        if self._gates is not None:
            self._gates.write(self._step)
        self._step += 1
        self._overall += 1

    def skip(self, epochs: int) -> None:
        """These epochs are done."""
        self._overall.fill_(epochs * self.batches.steps)

    @property
    def is_captured(self) -> bool:
        """Whether steps are replays by now."""
        return self._graph is not None

    def epoch(self, number: int) -> float:
        """One epoch; returns its mean loss."""
        self.begin(number)
        for _ in range(self.batches.steps):
            self.step()
        return self.end()

    def begin(self, number: int) -> None:
        """Begin an epoch, on this training's own stream."""
        self._number = number
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with self._aside():
            self._fetch(number)
            self._step.zero_()
            self._total.zero_()

    def step(self) -> None:
        """The next step of the epoch."""
        with self._aside():
            if self._graph is not None:
                self._graph.replay()
            elif self._warm < WARM_STEPS:  # CUDA wants real steps before a capture; they also pick the fastest kernels
                self._once()
                self._warm += 1
            else:
                self._graph = self._capture()
                self._graph.replay()

    def look_ahead(self) -> None:
        """Once all steps of an epoch are under way: put the next one's images behind them, so that nothing waits."""
        if self._number < self.recipe.epochs:
            with self._aside():
                self._fetch(self._number + 1)

    def end(self) -> float:
        """Wait for the epoch; returns its mean loss."""
        self.look_ahead()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        if self._gates is not None:
            self._gates.end()
        return float(self._total) / self.batches.steps

    def finish(self) -> None:
        """Let the graph and its memory go; the network is as it was, but trained."""
        if self._stream is not None:
            self._stream.synchronize()
        self._graph = None
        self._fusion.undo()
        if self._gates is not None:
            self._gates.release()

    def _aside(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _capture(self) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # On this stream alone: libraries keep a workspace for each stream, which two graphs must not share.
        with torch.cuda.graph(graph, stream=self._stream):
            self._once()
        return graph


def _is_plain(work: Work) -> bool:
    """Whether a step is no more than a plain network's loss in half precision."""
    others = (work.penalty, work.extra_loss, work.around_update)
    return work.in_half and isinstance(work.network, fx.GraphModule) and all(other is None for other in others)


def make_optimizers(groups: list[dict[str, Any]], recipe: Recipe) -> list[Optimizer]:
    """One optimizer for weights and norms, and Adam for scores, as the recipe says."""
    decay = {"weights": recipe.weight_decay}
    plain = [
        {"params": group["params"], "weight_decay": decay.get(group["name"], 0.0)}
        for group in groups
        if group["name"] != "scores"
    ]
    optimizers: list[Optimizer] = []
    if recipe.optimizer == "sgd":
        optimizers.append(SGD(plain, recipe.rate, recipe.momentum))
    else:
        optimizers.append(Adam(plain, recipe.rate))
    scores = [parameter for group in groups if group["name"] == "scores" for parameter in group["params"]]
    if scores:
        optimizers.append(Adam([{"params": scores}], recipe.score_rate))
    return optimizers


def schedules(work: Work) -> tuple[str | None, str | None]:
    """What the rates of `make_optimizers`' two follow: the recipe's own schedule if None."""
    return None, work.score_schedule


def set_rates(optimizers: list[Optimizer], share: float) -> None:
    """Set every rate to this share of its full value."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["full_rate"] * share


def _rates_on_device(optimizers: list[Optimizer], device: torch.device) -> list[tuple[Tensor, float]]:
    """Put each optimizer's rate on the device, where a captured step can change it."""
    rates = []
    for optimizer in optimizers:
        full = float(optimizer.param_groups[0]["full_rate"])
        rate = torch.tensor(full, device=device)
        for group in optimizer.param_groups:
            group["lr"] = rate
        rates.append((rate, full))
    return rates


@contextmanager
def _random_numbers(device: torch.device, seed: int) -> Iterator[None]:
    """Dropout and mask noise draw from the seed; the process's own random state is left as it was."""
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seeds.derive(seed, "dropout"))
        yield


def _autotuned(on_gpu: bool) -> Any:
    """Let cuDNN time its kernels for these shapes, unless the process asked for deterministic ones."""
    if not on_gpu:
        return nullcontext()
    asked = torch.backends.cudnn
    return asked.flags(
        enabled=True, benchmark=not asked.deterministic, deterministic=asked.deterministic, allow_tf32=asked.allow_tf32
    )
