"""Batches in which every image has its own task, on a GPU.

Each task's network then sees few images, and launching its kernels takes longer than running them. So a network that
comes again with as many rows is captured: gather its rows, normalise, answer, put the answers in their rows. Networks
run beside each other on a few streams; the device is waited for once, at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from grown.methods.grown.learner import Learner
    from grown.methods.grown.record import Record

STREAMS = 8
SMALL = 64  # rows; of more, kernels take longer than their launches, and a graph would hold on to much memory
WARM_RUNS = 2  # before a call is captured, so that a batch that comes once costs no capture
BYTES = 2**26  # of images that are on the device at once
MOST = 2048  # images at once


class MixedBatches:
    """Answers mixed batches of one kind of images on one GPU; what it captured stays."""

    def __init__(self, learner: Learner, device: str, like: Tensor) -> None:
        self._learner, self._device = learner, device
        self.capacity = max(SMALL, min(MOST, BYTES // max(1, like[0].nbytes)))
        self.images = torch.zeros(self.capacity, *like.shape[1:], dtype=like.dtype, device=device)
        self.answers = torch.zeros(0, 0, device=device)  # a row for each image, and one for rows that pad
        self._lanes = [_Lane(device) for _ in range(STREAMS)]
        self._tasks: dict[str, _TaskNetwork] = {}

    def predict(self, images: Tensor, rows: dict[str, list[int]]) -> list[Tensor]:
        """Class probabilities of each image, by the task in whose rows it is."""
        found: list[Tensor] = []
        for start in range(0, len(images), self.capacity):
            some = range(start, min(start + self.capacity, len(images)))
            mine = {name: [row - start for row in of if row in some] for name, of in rows.items()}
            mine = {name: of for name, of in mine.items() if of}
            answers = self._answer(images[start : some.stop], mine)
            classes = {row: len(self._learner.classes(name)) for name, of in mine.items() for row in of}
            each, most = enumerate(answers.unbind()), answers.shape[1]
            found += [answer if classes[row] == most else answer[: classes[row]] for row, answer in each]
        return found

    def _answer(self, images: Tensor, rows: dict[str, list[int]]) -> Tensor:
        """Probabilities (n, most classes of a task), on the CPU, of no more images than there is room for."""
        self._make_room(max(len(self._learner.classes(name)) for name in rows))
        here = torch.cuda.current_stream(self._device)
        self.images[: len(images)].copy_(images)
        calls = [self._network(name).call(mine) for name, mine in rows.items()]
        used = {call.lane for call in calls}
        for lane in used:
            lane.stream.wait_stream(here)
        for call in calls:
            call.run()
        for lane in used:
            here.wait_stream(lane.stream)
        return self.answers[: len(images)].cpu()

    def _make_room(self, classes: int) -> None:
        if self.answers.shape[1] < classes:
            self.answers = torch.zeros(self.capacity + 1, classes, device=self._device)
            self._tasks.clear()  # what was captured writes to where it was

    def _network(self, task: str) -> _TaskNetwork:
        mine, known = self._learner.records[task], self._tasks.get(task)
        if known is None or known.record is not mine:
            lane = known.lane if known is not None else self._lanes[len(self._tasks) % STREAMS]
            (network,) = self._learner.networks([task], self._device)
            self._tasks[task] = known = _TaskNetwork(self, mine, network, lane)
        return known


class _Lane:
    """A stream, and the memory that its graphs share: they never run at once, and nothing in it outlives a replay."""

    def __init__(self, device: str) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()


class _TaskNetwork:
    """A task's network and its calls, one for each number of rows that is captured."""

    def __init__(self, batches: MixedBatches, record: Record, network: nn.Module, lane: _Lane) -> None:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the images are
        self.record, self.lane = record, lane
        self._batches, self._network = batches, network
        self._scale = record.normalisation.on(batches.images.device, batches.images.ndim)
        self._calls: dict[int, _Call] = {}

    def call(self, rows: list[int]) -> _Call:
        """A call for these rows: their number is rounded up where it may be captured, so that it comes again."""
        size = len(rows) if len(rows) > SMALL else 1 << (len(rows) - 1).bit_length()
        call = self._calls.get(size) or _Call(self, size)
        if size <= SMALL:
            self._calls[size] = call
        call.take(rows, self._batches.capacity)
        return call

    def answer(self, rows: Tensor) -> None:
        """Answer these rows; those that pad have the number behind the last image, and answer there."""
        images, answers = self._batches.images, self._batches.answers
        x = images.index_select(0, rows.clamp(max=len(images) - 1))
        x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
        mean, deviation = self._scale
        found = self._network((x.float() - mean) / deviation).softmax(1)
        answers[:, : found.shape[1]].index_copy_(0, rows, found)


class _Call:
    """One network on so many rows, as a replay once it came again."""

    def __init__(self, network: _TaskNetwork, size: int) -> None:
        self.lane = network.lane
        self._network, self._size, self._runs = network, size, 0
        self._rows = torch.empty(0)
        self._graph: torch.cuda.CUDAGraph | None = None

    def take(self, rows: list[int], spare: int) -> None:
        """Set the rows."""
        padded = torch.tensor(rows + [spare] * (self._size - len(rows)))
        if self._runs == 0:
            self._rows = padded.to(self.lane.stream.device)
        else:
            self._rows.copy_(padded)

    def run(self) -> None:
        """Answer, on the lane's stream."""
        with torch.cuda.stream(self.lane.stream):
            if self._graph is not None:
                self._graph.replay()
            elif self._runs < WARM_RUNS:
                self._network.answer(self._rows)
                self._runs += 1
            else:
                torch.cuda.synchronize()
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, pool=self.lane.pool, stream=self.lane.stream):
                    self._network.answer(self._rows)
                self._graph.replay()
