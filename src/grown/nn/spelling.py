"""The many ways to write an operation in PyTorch, and the one way that a graph writes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import fx, nn

from grown.errors import TemplateError
from grown.nn.graph import Value

SUPPORTED = (
    "convolutions (plain or depthwise), linear layers, batch norm, group norm, local response norm, activations, "
    "dropout, pooling, flatten, addition, concatenation"
)
_REQUIRED = object()

# module type -> (operation, {our attribute: the module's})
_MODULES: dict[type[nn.Module], tuple[str, dict[str, str]]] = {
    nn.LocalResponseNorm: ("lrn", {"size": "size", "alpha": "alpha", "beta": "beta", "k": "k"}),
    nn.ReLU: ("relu", {}),
    nn.ReLU6: ("relu6", {}),
    nn.LeakyReLU: ("leaky_relu", {"negative_slope": "negative_slope"}),
    nn.ELU: ("elu", {"alpha": "alpha"}),
    nn.CELU: ("celu", {"alpha": "alpha"}),
    nn.SELU: ("selu", {}),
    nn.GELU: ("gelu", {"approximate": "approximate"}),
    nn.SiLU: ("silu", {}),
    nn.Mish: ("mish", {}),
    nn.Hardswish: ("hardswish", {}),
    nn.Hardtanh: ("hardtanh", {"min_val": "min_val", "max_val": "max_val"}),
    nn.Hardsigmoid: ("hardsigmoid", {}),
    nn.Tanh: ("tanh", {}),
    nn.Sigmoid: ("sigmoid", {}),
    nn.Softplus: ("softplus", {"beta": "beta", "threshold": "threshold"}),
    nn.Softsign: ("softsign", {}),
    nn.Identity: ("identity", {}),
    nn.Dropout: ("dropout", {"p": "p"}),
    nn.Dropout2d: ("dropout2d", {"p": "p"}),
    nn.MaxPool2d: (
        "max_pool",
        {
            "kernel": "kernel_size",
            "stride": "stride",
            "padding": "padding",
            "dilation": "dilation",
            "ceil_mode": "ceil_mode",
        },
    ),
    nn.AvgPool2d: (
        "avg_pool",
        {
            "kernel": "kernel_size",
            "stride": "stride",
            "padding": "padding",
            "ceil_mode": "ceil_mode",
            "count_include_pad": "count_include_pad",
        },
    ),
    nn.AdaptiveAvgPool2d: ("adaptive_avg_pool", {"size": "output_size"}),
    nn.AdaptiveMaxPool2d: ("adaptive_max_pool", {"size": "output_size"}),
}
_LAYERS: tuple[type[nn.Module], ...] = (
    nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.Flatten,
)  # fmt: skip

# function or method name -> (operation, {our attribute: default, in the order of the function's arguments})
_MAX_POOL: dict[str, Any] = {
    "kernel": _REQUIRED,
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "ceil_mode": False,
}
_AVG_POOL: dict[str, Any] = {
    "kernel": _REQUIRED,
    "stride": None,
    "padding": 0,
    "ceil_mode": False,
    "count_include_pad": True,
}
_FUNCTIONS: dict[Any, tuple[str, dict[str, Any]]] = {
    F.relu: ("relu", {}),
    torch.relu: ("relu", {}),
    torch.relu_: ("relu", {}),
    "relu": ("relu", {}),
    "relu_": ("relu", {}),
    F.relu6: ("relu6", {}),
    F.leaky_relu: ("leaky_relu", {"negative_slope": 0.01}),
    F.elu: ("elu", {"alpha": 1.0}),
    F.celu: ("celu", {"alpha": 1.0}),
    F.selu: ("selu", {}),
    F.gelu: ("gelu", {"approximate": "none"}),
    F.silu: ("silu", {}),
    F.mish: ("mish", {}),
    F.hardswish: ("hardswish", {}),
    F.hardtanh: ("hardtanh", {"min_val": -1.0, "max_val": 1.0}),
    F.hardsigmoid: ("hardsigmoid", {}),
    F.tanh: ("tanh", {}),
    torch.tanh: ("tanh", {}),
    "tanh": ("tanh", {}),
    F.sigmoid: ("sigmoid", {}),
    torch.sigmoid: ("sigmoid", {}),
    "sigmoid": ("sigmoid", {}),
    F.softplus: ("softplus", {"beta": 1.0, "threshold": 20.0}),
    F.softsign: ("softsign", {}),
    F.dropout: ("dropout", {"p": 0.5}),
    F.dropout2d: ("dropout2d", {"p": 0.5}),
    F.max_pool2d: ("max_pool", _MAX_POOL),
    torch.max_pool2d: ("max_pool", _MAX_POOL),
    F.avg_pool2d: ("avg_pool", _AVG_POOL),
    F.adaptive_avg_pool2d: ("adaptive_avg_pool", {"size": _REQUIRED}),
    F.adaptive_max_pool2d: ("adaptive_max_pool", {"size": _REQUIRED}),
    F.local_response_norm: ("lrn", {"size": _REQUIRED, "alpha": 1e-4, "beta": 0.75, "k": 1.0}),
    "contiguous": ("identity", {}),
}
_KEYWORDS = {"kernel": "kernel_size", "size": "output_size"}
_HARMLESS = {"input", "training", "inplace", "return_indices", "divisor_override", "memory_format"}


def known_base(module: nn.Module) -> type[nn.Module] | None:
    """The layer type whose forward pass this module runs unchanged, or None."""
    for base in (*_LAYERS, *_MODULES):
        if isinstance(module, base) and type(module).forward is base.forward:
            return base
    return None


def of_module(name: str, module: nn.Module) -> tuple[str, dict[str, Value]]:
    """The operation and attributes of a module, or a refusal that names it."""
    base = known_base(module)
    if base is nn.Conv2d:
        return "conv", _conv(name, cast(nn.Conv2d, module))
    if base is nn.Linear:
        linear = cast(nn.Linear, module)
        return "linear", {
            "out": linear.out_features,
            "in": linear.in_features,
            "bias": linear.bias is not None,
        }
    if base in (nn.BatchNorm1d, nn.BatchNorm2d):
        return "batch_norm", _batch_norm(name, cast(nn.BatchNorm2d, module))
    if base is nn.GroupNorm:
        norm = cast(nn.GroupNorm, module)
        return "group_norm", {
            "channels": norm.num_channels,
            "groups": norm.num_groups,
            "eps": norm.eps,
            "affine": norm.affine,
        }
    if base is nn.Flatten:
        flatten = cast(nn.Flatten, module)
        if (flatten.start_dim, flatten.end_dim) != (1, -1):
            raise TemplateError(f"{name}: only Flatten(1, -1) can grow, but got {flatten.start_dim}, {flatten.end_dim}")
        return "flatten", {}
    if base is None:
        raise TemplateError(f"{name}: {type(module).__name__} is not supported. Supported: {SUPPORTED}.")
    if getattr(module, "return_indices", False) or getattr(module, "divisor_override", None) is not None:
        raise TemplateError(f"{name}: return_indices and divisor_override are not supported")
    op, names = _MODULES[base]
    return op, {ours: _plain(getattr(module, theirs)) for ours, theirs in names.items()}


def of_function(node: fx.Node, where: str) -> tuple[str, dict[str, Value]]:
    """The operation and attributes of a function or method call, or a refusal that names it."""
    target: Any = node.target
    if target not in _FUNCTIONS:
        raise TemplateError(f"{where} is not supported. Supported: {SUPPORTED}.")
    op, defaults = _FUNCTIONS[target]
    if node.kwargs.get("return_indices") or node.kwargs.get("divisor_override") is not None:
        raise TemplateError(f"{where}: return_indices and divisor_override are not supported")
    attrs: dict[str, Value] = {}
    for position, (key, default) in enumerate(defaults.items(), start=1):
        keyword = "size" if op == "lrn" else _KEYWORDS.get(key, key)
        value = node.args[position] if len(node.args) > position else node.kwargs.get(keyword, default)
        if value is _REQUIRED or isinstance(value, fx.Node):
            raise TemplateError(f"{where}: {keyword} must be a plain number")
        attrs[key] = _plain(value)
    known = {_KEYWORDS.get(key, key) for key in defaults} | {"size"} | _HARMLESS
    if strange := set(node.kwargs) - known:
        raise TemplateError(f"{where}: argument {sorted(strange)[0]!r} is not supported")
    if attrs.get("stride", 0) is None:
        attrs["stride"] = attrs["kernel"]
    return op, attrs


def of_mean(node: fx.Node, where: str) -> dict[str, Value]:
    """A mean over both image axes: global average pooling."""
    axes: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    if sorted(axis % 4 for axis in axes) != [2, 3]:
        raise TemplateError(f"{where}: only the mean over both image axes, (2, 3), can grow, but got {axes}")
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return {"keepdim": bool(keepdim)}


def target_name(target: Any) -> str:
    """How a user would recognise a call."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _conv(name: str, conv: nn.Conv2d) -> dict[str, Value]:
    depthwise = conv.groups > 1 and conv.groups == conv.in_channels == conv.out_channels
    if conv.groups != 1 and not depthwise:
        raise TemplateError(
            f"{name}: a grouped convolution ({conv.in_channels} to {conv.out_channels}, groups={conv.groups}) "
            "cannot grow; only groups=1, or depthwise with one kernel a channel"
        )
    return {
        "out": conv.out_channels,
        "in": conv.in_channels,
        "kernel": list(conv.kernel_size),
        "stride": list(conv.stride),
        "padding": conv.padding if isinstance(conv.padding, str) else list(conv.padding),
        "dilation": list(conv.dilation),
        "padding_mode": conv.padding_mode,
        "bias": conv.bias is not None,
        "depthwise": depthwise,
    }


def _batch_norm(name: str, norm: nn.BatchNorm2d | nn.BatchNorm1d) -> dict[str, Value]:
    if not norm.track_running_stats:
        raise TemplateError(
            f"{name}: batch norm without running statistics answers differently in each batch; "
            "use track_running_stats=True"
        )
    return {
        "channels": norm.num_features,
        "eps": norm.eps,
        "momentum": norm.momentum,
        "affine": norm.affine,
        "dims": 1 if isinstance(norm, nn.BatchNorm1d) else 2,
    }


def _plain(value: Any) -> Value:
    return [_plain(part) for part in value] if isinstance(value, tuple | list) else cast(Value, value)


# Builders of the plain module for each operation that has no weights.
Builder = Callable[[dict[str, Any]], nn.Module]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _builder(kind: type[nn.Module], names: dict[str, str]) -> Builder:
    return lambda attrs: kind(**{theirs: _tuple(attrs[ours]) for ours, theirs in names.items()})


BUILDERS: dict[str, Builder] = {op: _builder(kind, names) for kind, (op, names) in _MODULES.items()}
BUILDERS["flatten"] = lambda _: nn.Flatten()
