"""Ownership: no sequence of growth, release and commit changes an owned kernel or an earlier task's view."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grown.errors import FileError
from grown.nn import axes, bits
from grown.nn.bank import Bank
from grown.nn.groups import Axis

STEPS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),  # channels to append to each group
        st.floats(0.0, 1.0),  # which share of the free kernels is claimed; the rest is released
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=6,
)


@given(STEPS, st.booleans())
def test_an_owned_kernel_never_changes(steps: list[tuple[tuple[int, int, int], float, int]], depthwise: bool) -> None:
    columns = None if depthwise else Axis((1, 2))
    bank = Bank("layer", Axis((0,)), columns, (3, 3), (0, 2, 1))
    widths = (0, 2, 1)
    seen: list[tuple[tuple[int, ...], torch.Tensor, torch.Tensor]] = []
    for task, (added, share, seed) in enumerate(steps, start=1):
        wider = tuple(a + b for a, b in zip(widths, added, strict=True))
        bank.grow(widths, wider)
        widths = wider
        draw = torch.Generator().manual_seed(seed)
        free = bank.owner == 0
        mine = free & (torch.rand(free.shape, generator=draw) < share)
        bank.claim(torch.randn(bank.weight.shape, generator=draw), mine, task)
        used = (bank.owner > 0).clone()
        rows, cols = bank.view(widths, widths)
        seen.append((widths, used, bank.weight[rows][:, cols][used]))
        for earlier, (then, flags, kernels) in enumerate(seen, start=1):
            rows, cols = bank.view(widths, then)
            assert torch.equal(bank.weight[rows][:, cols][flags], kernels)
            owners = bank.owner[rows][:, cols][flags]
            assert bool(((owners > 0) & (owners <= earlier)).all())
        assert bool((bank.weight[bank.owner == 0] == 0).all())


def test_an_owned_kernel_cannot_be_claimed_again() -> None:
    bank = Bank("layer", Axis((0,)), Axis((1,)), (1,), (2, 2))
    everything = torch.ones(2, 2, dtype=torch.bool)
    bank.claim(torch.ones(2, 2, 1), everything, 1)
    with pytest.raises(ValueError, match="cannot be claimed again"):
        bank.claim(torch.zeros(2, 2, 1), everything, 2)
    with pytest.raises(ValueError, match="rise"):
        bank.claim(torch.zeros(2, 2, 1), ~everything, 1)
    with pytest.raises(ValueError, match="only ever appended"):
        bank.grow((2, 2), (1, 2))
    bank.weight.zero_()
    bank.owner.zero_()
    assert bool((bank.weight == 1).all())
    assert bank.owned() == 4


def test_a_segment_grows_in_the_middle_of_an_axis() -> None:
    axis = Axis((0, 1))
    assert axes.prefix(axis, (4, 3), (2, 2)).tolist() == [0, 1, 4, 5]
    assert axes.chosen(axis, (4, 3), [torch.tensor([1, 3]), torch.tensor([2])]).tolist() == [1, 3, 6]


@given(st.lists(st.booleans(), max_size=70))
def test_bits_come_back(flags: list[bool]) -> None:
    tensor = torch.tensor(flags, dtype=torch.bool)
    packed = bits.pack(tensor)
    assert packed.numel() == (len(flags) + 7) // 8
    assert torch.equal(bits.unpack(packed, len(flags)), tensor)
    with pytest.raises(FileError):
        bits.unpack(packed, len(flags) + 8)


@given(st.lists(st.integers(0, 2**20), max_size=40))
def test_numbers_come_back(numbers: list[int]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.int32)
    planes = bits.pack_numbers(tensor)
    assert planes.shape[0] == max(numbers, default=0).bit_length()
    assert torch.equal(bits.unpack_numbers(planes, len(numbers)), tensor)
