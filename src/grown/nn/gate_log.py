"""Every opening and closing of a candidate channel, noted without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from grown.nn.network import GrowingNetwork


class GateLog:
    """The gates' states, pass by pass; they are compared only when the flips are asked for.

    In a loop of one's own each training pass notes them. A captured step writes them into a table on the device
    instead, since what it does on the host happens once.
    """

    def __init__(self, network: GrowingNetwork) -> None:
        self._network = network
        self._passes: list[dict[int, Tensor]] = []  # by group: a row for each pass
        self.last: dict[int, Tensor] = {}  # the states that the next flips are counted from
        self._table: Tensor | None = None  # steps by candidates, group by group

    def start(self, group: int, states: Tensor) -> None:
        """What the flips of a group count from."""
        self.last[group] = states.cpu()

    @torch.no_grad()
    def note(self) -> None:
        """Remember the states as they are now."""
        if self._table is None:
            states = self._network.open_candidates()
            self._passes.append({group: mine.unsqueeze(0) for group, mine in states.items()})

    @torch.no_grad()
    def begin(self, steps: int) -> None:
        """From now on a captured step writes a table of so many rows."""
        if self._network.gates:
            scores = self._network.gate_scores()
            self._table = torch.zeros((steps, len(scores)), dtype=torch.bool, device=scores.device)

    @torch.no_grad()
    def write(self, step: Tensor) -> None:
        """Write one row of the table."""
        if self._table is not None:
            self._table.index_copy_(0, step, (self._network.gate_scores() > 0).unsqueeze(0))

    def end(self) -> None:
        """Take the table over; once an epoch."""
        if self._table is not None:
            whole = self._table.cpu()
            rows = torch.split(whole, [len(scores) for scores in self._network.gates.values()], dim=1)
            self._passes.append(dict(zip(map(int, self._network.gates), rows, strict=True)))

    def take(self) -> list[dict[str, Any]]:
        """Every flip since the last call: pass, group, candidates opened, candidates closed."""
        events, first = [], 0
        for block in self._passes:
            for order, (group, rows) in enumerate(block.items()):
                now, before = rows.cpu(), self.last.get(group)
                known = now[:1] if before is None or len(before) != now.shape[1] else before.unsqueeze(0)
                states = torch.cat([known, now])
                for at in (states[1:] != states[:-1]).any(1).nonzero().flatten().tolist():
                    was, is_now = states[at], states[at + 1]
                    event = {
                        "pass": first + at,
                        "group": self._network.channels.groups[group].name,
                        "opened": (is_now & ~was).nonzero().flatten().tolist(),
                        "closed": (was & ~is_now).nonzero().flatten().tolist(),
                    }
                    events.append((first + at, order, event))
                self.last[group] = now[-1]
            first += max(len(rows) for rows in block.values()) if block else 1
        self._passes.clear()
        return [event for *_, event in sorted(events, key=lambda found: found[:2])]

    def release(self) -> None:
        """Passes note their states again."""
        self._table = None
