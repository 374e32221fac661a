"""A method as data, and how large that data is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Size:
    """Parameters and bytes by part, measured on the saved file."""

    parameters: dict[str, int]
    bytes: dict[str, int]  # by part, and in "total"
    base_parameters: int

    @property
    def size_x(self) -> float:
        """As the paper counts: kernels alone, over the template's shared weights."""
        return self.parameters["kernels"] / self.base_parameters

    @property
    def bytes_x(self) -> float:
        """Everything in the file, over the template's shared weights in fp32."""
        return self.bytes["total"] / (4 * self.base_parameters)


@dataclass
class State:
    """A method as data: tensors, and a JSON object."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
