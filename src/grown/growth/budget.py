"""Sizes in parameters, the widths that fit a size, and the candidates that fit what is left of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from grown.errors import ConfigError
from grown.nn.axes import Widths
from grown.nn.bank import Bank
from grown.nn.groups import Channels
from grown.nn.network import GrowingNetwork


def parameters(banks: dict[str, Bank], widths: Widths) -> int:
    """Weights in all kernels at these widths."""
    return sum(math.prod(bank.extent(widths)) * math.prod(bank.kernel) for bank in banks.values())


def scaled_widths(channels: Channels, factor: float, *, hidden_alone: bool = False) -> Widths:
    """The template's widths times this factor, in whole units, one at least; what touches the input stays.

    With `hidden_alone` all stays but the hidden units of linear layers, in a template that has such.
    """
    hidden_alone = hidden_alone and any(group.hidden for group in channels.groups)
    return tuple(
        group.width
        if group.fixed or (hidden_alone and not group.hidden)
        else max(group.unit, int(group.width * factor / group.unit + 1e-9) * group.unit)
        for group in channels.groups
    )


def widths_within(channels: Channels, banks: dict[str, Bank], limit: float, shape: str = "even") -> Widths:
    """The template scaled to the largest common factor that fits `limit` parameters."""

    def fits(widths: Widths) -> bool:
        return parameters(banks, widths) <= limit

    least = parameters(banks, scaled_widths(channels, 0.0))
    if least > limit:
        base = parameters(banks, channels.template_widths())
        raise ConfigError(
            f"a size of {limit / base:.4g}x is below the smallest network of this template, {least / base:.4g}x"
        )
    return largest_widths(scaling(channels, fits, shape), fits)


def scaling(channels: Channels, fits: Callable[[Widths], bool], shape: str) -> Callable[[float], Widths]:
    """What a factor makes of the template's widths.

    By shape "hidden" linear layers become narrower alone, as long as that leaves them a twentieth.
    """
    alone = partial(scaled_widths, channels, hidden_alone=True)
    narrows = shape == "hidden" and fits(alone(1 / 20)) and not fits(channels.template_widths())
    return alone if narrows else partial(scaled_widths, channels)


def widths_with_candidates(
    channels: Channels, banks: dict[str, Bank], present: Widths, counted: Widths, room: float, shape: str = "even"
) -> Widths | None:
    """`present` widths plus candidates in the template's proportions, or None if nothing fits.

    `counted` are the widths that are paid for already; all new candidates open together may cost `room` more. By shape
    "hidden" the proportions are those of `counted`, the network that there is.
    """
    proportions = counted if shape == "hidden" else channels.template_widths()

    def extra(factor: float) -> Widths:
        return tuple(
            0 if group.fixed else round(width * factor / group.unit) * group.unit
            for group, width in zip(channels.groups, proportions, strict=True)
        )

    def fits(added: Widths) -> bool:
        wide = tuple(a + b for a, b in zip(counted, added, strict=True))
        return parameters(banks, wide) - parameters(banks, counted) <= room

    added = largest_widths(extra, fits)
    return tuple(a + b for a, b in zip(present, added, strict=True)) if any(added) else None


def largest_widths(widths_at: Callable[[float], Widths], fits: Callable[[Widths], bool]) -> Widths:
    """The widths at the largest factor that fits, by bisection."""
    low, high = 0.0, 4.0
    while high < 2**20 and fits(widths_at(high)):  # a template all of whose widths are fixed fits at any factor
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(widths_at(middle)) else (low, middle)
    return widths_at(low)


def open_widths(network: GrowingNetwork) -> Widths:
    """The widths that would be left if the closed candidates were dropped now."""
    opened = network.open_candidates()
    counts = torch.stack([flags.sum() for flags in opened.values()]).tolist() if opened else []  # waits only once
    found = dict(zip(opened, counts, strict=True))
    return tuple(
        network.settled[group.index] + found.get(group.index, 0) * group.unit for group in network.channels.groups
    )


def channel_costs(channels: Channels, banks: dict[str, Bank], widths: Widths) -> list[int]:
    """For each group, the parameters that one unit of channels adds at these widths."""
    here = parameters(banks, widths)
    costs = []
    for group in channels.groups:
        wider = tuple(w + group.unit * (i == group.index) for i, w in enumerate(widths))
        costs.append(parameters(banks, wider) - here)
    return costs


def prices(network: GrowingNetwork, costs: Sequence[float], budget: float) -> Tensor:
    """What each candidate costs, in shares of the budget, group by group as in `gate_scores`."""
    each = [torch.full_like(scores, costs[int(name)] / budget) for name, scores in network.gates.items()]
    return torch.cat(each).detach()


def growth_penalty(network: GrowingNetwork, prices: Tensor, weight: float) -> Tensor:
    """lambda ||m_g||_0 of Eq. 3 and 8: expected, in parameters over the budget.

    Its weight follows the distance to the budget (as in Yuan et al.): nothing while nothing is open, lambda when the
    open candidates fill the budget, more beyond.
    """
    scores = network.gate_scores()
    return weight * total(network, prices, scores.detach() > 0) * total(network, prices, torch.sigmoid(scores))


def total(network: GrowingNetwork, prices: Tensor, shares: Tensor) -> Tensor:
    """What candidates cost of which these shares are open."""
    return _at_once(prices, shares) if prices.is_cuda else _by_group(network, prices, shares)


def _by_group(network: GrowingNetwork, prices: Tensor, shares: Tensor) -> Tensor:
    found = prices.new_zeros(())
    for price, mine in zip(network.by_group(prices), network.by_group(shares), strict=True):
        found = found + price[0] * mine.sum()
    return found


def _at_once(prices: Tensor, shares: Tensor) -> Tensor:
    """The same up to rounding, in few kernels: on a GPU each costs more than what it computes here."""
    return (prices * shares).sum()


def density_penalty(network: GrowingNetwork, density: float, weight: float) -> Tensor:
    """How far the attentive masks are above a target density, over all trainable kernels together."""
    on = network.head.weight.new_zeros(())
    count = network.head.weight.new_zeros(())
    for layer in network.masked().values():
        if layer.weight is not None:
            on = on + (layer.mask() * layer.share).sum()
            count = count + layer.share.sum()
    return weight * torch.relu(on / count.clamp_min(1.0) - density)


@torch.no_grad()
def close_over_cap(network: GrowingNetwork, cap: float) -> None:
    """Close the lowest gates until the open network fits the cap."""
    while parameters(network.banks, open_widths(network)) > cap:
        lowest: tuple[float, str, int] | None = None
        for name, scores in network.gates.items():
            for index, score in enumerate(scores.tolist()):
                if score > 0 and (lowest is None or score < lowest[0]):
                    lowest = (score, name, index)
        if lowest is None:
            raise ConfigError(f"the network without candidates exceeds its cap of {cap:.0f} parameters")
        network.gates[lowest[1]][lowest[2]] = -abs(lowest[0]) - 1e-6
        network.gate_log.release()
        network.gate_log.note()
