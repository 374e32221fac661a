"""What each operation's attributes may be, and the shape of what it gives: a graph is checked before it is built."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from grown.errors import TemplateError

Shape = tuple[int, ...]

LONGEST_AXIS = 2**24
MOST_ELEMENTS = 2**26  # of one image's activation; a network for larger images would not fit a machine
WINDOW = 4096  # the largest kernel, stride, padding or dilation
LONGEST_NAME = 200
DEEPEST_NAME = 32

# Names become attributes of a module and parts of the code that torch.fx writes for it.
_PART = re.compile(r"[\w-]+")
_TAKEN_INSIDE = frozenset(dir(nn.Module())) | frozenset(nn.Module().__dict__)
_TAKEN = _TAKEN_INSIDE | frozenset(dir(fx.GraphModule)) | {"_graph", "_code", "meta"}


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _is_whole(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e30


def _is_pair(value: Any, low: int) -> bool:
    return _is_two(value) and all(_is_whole(part, low, WINDOW) for part in value)


def _is_window(value: Any, low: int) -> bool:
    return _is_whole(value, low, WINDOW) or _is_pair(value, low)


def _is_two(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_side(value: Any) -> bool:
    return value is None or _is_whole(value, 1, LONGEST_AXIS)


COUNT = Rule(f"a whole number from 1 to {LONGEST_AXIS}", lambda v: _is_whole(v, 1, LONGEST_AXIS))
FLAG = Rule("true or false", lambda v: isinstance(v, bool))
NUMBER = Rule("a number", _is_number)
NOT_NEGATIVE = Rule("a number of at least 0", lambda v: _is_number(v) and v >= 0)
POSITIVE = Rule("a number above 0", lambda v: _is_number(v) and v > 0)
SHARE = Rule("a number from 0 to 1", lambda v: _is_number(v) and 0 <= v <= 1)
MOMENTUM = Rule("a number from 0 to 1, or none", lambda v: v is None or (_is_number(v) and 0 <= v <= 1))
PAIR = Rule(f"two whole numbers from 1 to {WINDOW}", lambda v: _is_pair(v, 1))
PADDING = Rule("two whole numbers, 'same' or 'valid'", lambda v: v in ("same", "valid") or _is_pair(v, 0))
WINDOWED = Rule(f"one or two whole numbers from 1 to {WINDOW}", lambda v: _is_window(v, 1))
BORDER = Rule(f"one or two whole numbers from 0 to {WINDOW}", lambda v: _is_window(v, 0))
SIDES = Rule("one or two sizes, or none", lambda v: all(map(_is_side, v)) if _is_two(v) else _is_side(v))
DIMS = Rule("1 or 2", lambda v: _is_whole(v, 1, 2))


def one_of(*choices: str) -> Rule:
    """One of these texts."""
    return Rule(f"one of {', '.join(choices)}", lambda v: isinstance(v, str) and v in choices)


ATTRIBUTES: dict[str, dict[str, Rule]] = {
    "conv": {
        "out": COUNT,
        "in": COUNT,
        "kernel": PAIR,
        "stride": PAIR,
        "padding": PADDING,
        "dilation": PAIR,
        "padding_mode": one_of("zeros", "reflect", "replicate", "circular"),
        "bias": FLAG,
        "depthwise": FLAG,
    },
    "linear": {"out": COUNT, "in": COUNT, "bias": FLAG},
    "head": {"in": COUNT, "bias": FLAG},
    "batch_norm": {"channels": COUNT, "eps": NOT_NEGATIVE, "momentum": MOMENTUM, "affine": FLAG, "dims": DIMS},
    "group_norm": {"channels": COUNT, "groups": COUNT, "eps": NOT_NEGATIVE, "affine": FLAG},
    "lrn": {"size": COUNT, "alpha": NUMBER, "beta": NUMBER, "k": NUMBER},
    "leaky_relu": {"negative_slope": NUMBER},
    "elu": {"alpha": NUMBER},
    "celu": {"alpha": Rule("a number other than 0", lambda v: _is_number(v) and v != 0)},
    "gelu": {"approximate": one_of("none", "tanh")},
    "hardtanh": {"min_val": NUMBER, "max_val": NUMBER},
    "softplus": {"beta": POSITIVE, "threshold": NUMBER},
    "dropout": {"p": SHARE},
    "dropout2d": {"p": SHARE},
    "max_pool": {
        "kernel": WINDOWED,
        "stride": WINDOWED,
        "padding": BORDER,
        "dilation": WINDOWED,
        "ceil_mode": FLAG,
    },
    "avg_pool": {
        "kernel": WINDOWED,
        "stride": WINDOWED,
        "padding": BORDER,
        "ceil_mode": FLAG,
        "count_include_pad": FLAG,
    },
    "adaptive_avg_pool": {"size": SIDES},
    "adaptive_max_pool": {"size": SIDES},
    "mean": {"keepdim": FLAG},
}


def check_name(name: str) -> None:
    """Refuse a name that could not be a module's, or that would not stay one in generated code."""
    parts = name.split(".")
    good = (
        0 < len(name) <= LONGEST_NAME
        and len(parts) <= DEEPEST_NAME
        and all(_PART.fullmatch(part) for part in parts)
        and unicodedata.normalize("NFKC", name) == name
        and max(name) < "\U00010000"
    )
    if not good or parts[0] in _TAKEN or not _TAKEN_INSIDE.isdisjoint(parts[1:]):
        raise TemplateError(
            f"a layer is named {name[:60]!r}; names are letters, digits, '_' and '-', and no name that PyTorch's "
            "modules have"
        )


def check_attributes(name: str, op: str, attrs: dict[str, Any]) -> None:
    """Refuse a value that is not of its attribute's type and range."""
    for key, rule in ATTRIBUTES.get(op, {}).items():
        if not rule.holds(attrs[key]):
            raise TemplateError(f"{name}: {key} must be {rule.words}, but got {str(attrs[key])[:60]}")


def check_shape(name: str, op: str, attrs: dict[str, Any], inputs: list[Shape], shape: Shape) -> None:
    """Refuse a node whose shape is not what its operation makes of its inputs."""
    if len(shape) not in (1, 3) or max(shape) > LONGEST_AXIS or math.prod(shape) > MOST_ELEMENTS:
        raise TemplateError(f"{name}: its shape is {list(shape)}; features or channels x height x width are expected")
    if op == "input":
        return
    try:
        found = _output(op, attrs, inputs)
    except _MisfitError as error:
        sizes = " and ".join(str(list(size)) for size in inputs)
        raise TemplateError(f"{name}: {op} does not take {sizes}: {error}") from None
    if len(shape) != 1 if op == "head" else shape != found:  # a head has as many outputs as a task has classes
        raise TemplateError(f"{name}: its shape is {list(shape)}, but {op} gives {list(found)}")


class _MisfitError(Exception):
    """An operation and its input do not go together."""


def _need(holds: bool, words: str) -> None:
    if not holds:
        raise _MisfitError(words)


def _output(op: str, attrs: dict[str, Any], inputs: list[Shape]) -> Shape:
    first = inputs[0]
    if op in ("conv", "max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "mean", "lrn"):
        _need(len(first) == 3, "it needs channels x height x width")
    if op in ("linear", "head"):
        _need(first == (attrs["in"],), f"it reads {attrs['in']} features")
        return (attrs["out"],) if op == "linear" else first
    if op == "conv":
        return _conv(attrs, first)
    if op == "lrn":
        _need((first[0] + attrs["size"]) * math.prod(first[1:]) <= MOST_ELEMENTS, "its size is too large")
    if op in ("batch_norm", "group_norm"):
        _need(first[0] == attrs["channels"], f"it has {attrs['channels']} channels")
        if op == "batch_norm":
            _need(len(first) == (1 if attrs["dims"] == 1 else 3), f"it is of {attrs['dims']} dimensions")
        else:
            _need(attrs["channels"] % attrs["groups"] == 0, f"{attrs['groups']} groups do not divide its channels")
        return first
    if op in ("max_pool", "avg_pool"):
        return (first[0], *(_pooled(attrs, side, axis) for axis, side in enumerate(first[1:])))
    if op in ("adaptive_avg_pool", "adaptive_max_pool"):
        wanted = [_along(attrs["size"], axis) for axis in (0, 1)]
        return (first[0], *(side if want is None else want for want, side in zip(wanted, first[1:], strict=True)))
    if op == "mean":
        return (first[0], 1, 1) if attrs["keepdim"] else first[:1]
    if op == "flatten":
        return (math.prod(first),)
    if op == "add":
        _need(len(set(inputs)) == 1, "branches of different shapes")
    if op == "cat":
        _need(len({shape[1:] for shape in inputs}) == 1, "branches of different sizes")
        return (sum(shape[0] for shape in inputs), *first[1:])
    if op == "hardtanh":
        _need(attrs["min_val"] < attrs["max_val"], "min_val must be below max_val")
    return first


def _conv(attrs: dict[str, Any], first: Shape) -> Shape:
    _need(first[0] == attrs["in"], f"it reads {attrs['in']} channels")
    _need(not attrs["depthwise"] or attrs["out"] == attrs["in"], "a depthwise layer has one kernel a channel")
    reaches = [d * (k - 1) + 1 for d, k in zip(attrs["dilation"], attrs["kernel"], strict=True)]
    if attrs["padding"] == "same":
        _need(attrs["stride"] == [1, 1], "padding 'same' needs stride 1")
        borders = [(reach - 1, reach // 2) for reach in reaches]  # both sides together, the wider one
    else:
        sizes = [0, 0] if attrs["padding"] == "valid" else attrs["padding"]
        borders = [(2 * size, size) for size in sizes]
    padded = [side + both for side, (both, _) in zip(first[1:], borders, strict=True)]
    _need(first[0] * math.prod(padded) <= MOST_ELEMENTS, "its padded image is too large")
    for side, (_, wider) in zip(first[1:], borders, strict=True):
        if attrs["padding_mode"] in ("reflect", "circular"):
            _need(wider < side + (attrs["padding_mode"] == "circular"), "its padding exceeds the image")
    _need(all(side >= reach for side, reach in zip(padded, reaches, strict=True)), "its kernel exceeds the image")
    steps = zip(padded, reaches, attrs["stride"], strict=True)
    return (attrs["out"], *((side - reach) // stride + 1 for side, reach, stride in steps))


def _pooled(attrs: dict[str, Any], side: int, axis: int) -> int:
    kernel, stride, padding = (_along(attrs[key], axis) for key in ("kernel", "stride", "padding"))
    reach = _along(attrs.get("dilation", 1), axis) * (kernel - 1) + 1
    _need(2 * padding <= reach, "its padding exceeds half of its kernel")
    room = side + 2 * padding - reach
    size = (room + (stride - 1 if attrs["ceil_mode"] else 0)) // stride + 1
    if attrs["ceil_mode"] and (size - 1) * stride >= side + padding:
        size -= 1  # a window must begin inside the image
    _need(size >= 1, "its kernel exceeds the image")
    return int(size)


def _along(value: Any, axis: int) -> Any:
    return value[axis] if isinstance(value, list) else value
