"""A vector of mostly zeros: a bit for each place, and the values where there are any."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grown.errors import FileError
from grown.nn import bits


@dataclass(frozen=True)
class Sparse:
    """What a file holds of such a vector, and what memory does."""

    where: Tensor  # uint8, eight places a byte
    values: Tensor  # in their order, none of them zero

    @staticmethod
    def of(dense: Tensor, kind: torch.dtype) -> Sparse:
        """A vector whose values are kept in this type."""
        kept = dense.to(kind)
        present = kept != 0
        return Sparse(bits.pack(present), kept[present].clone())

    def dense(self, length: int) -> Tensor:
        """The vector."""
        vector = torch.zeros(length)
        return vector.masked_scatter_(bits.unpack(self.where, length), self.values.float())

    def check(self, name: str, length: int) -> None:
        """Refuse bits and values that do not go together."""
        count = int(bits.unpack(self.where, length).sum())
        there = int((self.values != 0).sum())
        if count != there or there != self.values.numel():
            raise FileError(f"{name}: {count} places have a value, but {there} values other than 0 are there")
