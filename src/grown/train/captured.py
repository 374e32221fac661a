"""Steps on a GPU: one is captured as a CUDA graph and replayed.

It fetches its own batch, counts its own steps and reads its own learning rate from the device, so that the host only
says "again".
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from grown.nn import accelerate, aside
from grown.train.batches import Batch
from grown.train.fuse import Fusion
from grown.train.halves import Halves
from grown.train.optimizers import Optimizer
from grown.train.schedule import factor
from grown.train.steps import Work, loss_of, make_optimizers, schedules, update

WARM_STEPS = 3  # steps that run as they are before one is captured


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
