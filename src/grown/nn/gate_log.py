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
        self._passes: list[dict[int, Tensor]] = []
        self.last: dict[int, Tensor] = {}  # the states that the next flips are counted from
        self._table: dict[int, Tensor] | None = None

    def start(self, group: int, states: Tensor) -> None:
        """What the flips of a group count from."""
        self.last[group] = states.cpu()

    @torch.no_grad()
    def note(self) -> None:
        """Remember the states as they are now."""
        if self._table is None:
            self._passes.append(self._network.open_candidates())

    def begin(self, steps: int) -> None:
        """From now on a captured step writes a table of so many rows."""
        self._table = {
            group: torch.zeros((steps, len(states)), dtype=torch.bool, device=states.device)
            for group, states in self._network.open_candidates().items()
        }

    @torch.no_grad()
    def write(self, step: Tensor) -> None:
        """Write one row of the table."""
        for group, states in self._network.open_candidates().items():
            (self._table or {})[group].index_copy_(0, step, states.unsqueeze(0))

    def end(self) -> None:
        """Take the table's rows over; once an epoch."""
        rows = {group: table.cpu() for group, table in (self._table or {}).items()}
        steps = min((len(table) for table in rows.values()), default=0)
        self._passes += [{group: table[step] for group, table in rows.items()} for step in range(steps)]

    def take(self) -> list[dict[str, Any]]:
        """Every flip since the last call: pass, group, candidates opened, candidates closed."""
        events = []
        for number, states in enumerate(self._passes):
            for group, state in states.items():
                now = state.cpu()
                before = self.last.get(group)
                if before is not None and before.shape == now.shape and not torch.equal(before, now):
                    events.append(
                        {
                            "pass": number,
                            "group": self._network.channels.groups[group].name,
                            "opened": (now & ~before).nonzero().flatten().tolist(),
                            "closed": (before & ~now).nonzero().flatten().tolist(),
                        }
                    )
                self.last[group] = now
        self._passes.clear()
        return events

    def release(self) -> None:
        """Passes note their states again."""
        self._table = None
