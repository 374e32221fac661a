"""Bytes and parameters by part, as a save writes them."""

from __future__ import annotations

from grown.io import container
from grown.io.state import Size, State

# The last word of a tensor's name says which part it belongs to; all else is "other".
PARTS = {
    "kernels": "kernels",
    "factors": "kernels",
    "laterals": "kernels",
    "picked": "picked_bits",
    "soft": "picked_bits",
    "where": "picked_bits",
    "own": "norms_and_biases",
    "head": "heads",
}


def measure(state: State, base_parameters: int) -> Size:
    """The size of a state as a file."""
    numbers = dict.fromkeys((*PARTS.values(), "other"), 0)
    parameters = dict(numbers)
    for name, tensor in state.tensors.items():
        part = PARTS.get(name.rsplit("/", 1)[-1], "other")
        numbers[part] += tensor.numel() * tensor.element_size()
        parameters[part] += tensor.numel() if tensor.is_floating_point() else 0
    total = container.length(state.tensors, state.meta)
    numbers["other"] += total - sum(numbers.values())  # the header, with its names, shapes and digests
    numbers["total"] = total
    parameters["total"] = sum(parameters.values())
    return Size(parameters, numbers, base_parameters)
