"""Reads a template's forward pass into a `Graph`, and refuses by name what cannot grow."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from grown.errors import TemplateError
from grown.nn import spelling
from grown.nn.graph import Graph, Node, Value

ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
PRODUCTS = (operator.mul, operator.imul, torch.mul, "mul", "mul_", operator.matmul, torch.matmul, torch.bmm)
CONCATENATIONS = (torch.cat, torch.concat, torch.concatenate)
RESHAPES = ("view", "reshape", "flatten", torch.flatten, torch.reshape)
MEANS = ("mean", torch.mean)
SHAPE_QUERIES = ("size", "dim", getattr, operator.getitem)
IN_PLACE = ("add_", "mul_", "relu_", operator.iadd, torch.relu_)


class _Tracer(fx.Tracer):
    """Stops at the layers that we know, also where a user subclassed one without changing what it computes."""

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        known = spelling.known_base(module)
        return known is not None or super().is_leaf_module(module, name)


def check(template: nn.Module) -> None:
    """Refuse what can be refused before an image's shape is known."""
    _Reader(template, None).read()


def trace(template: nn.Module, input_shape: tuple[int, ...]) -> Graph:
    """The template's graph for inputs of this shape (channels first, no batch axis)."""
    return Graph(tuple(_Reader(template, input_shape).read()))


class _Reader:
    def __init__(self, template: nn.Module, input_shape: tuple[int, ...] | None) -> None:
        self.template = template
        self.fx_graph = _symbolic(template)
        self.modules = dict(template.named_modules())
        self.input_shape = input_shape
        self.shapes = _shapes(template, self.fx_graph, input_shape) if input_shape is not None else None
        self.names: dict[fx.Node, str] = {}
        self.aliases: dict[fx.Node, fx.Node] = {}  # an input that an in-place operation overwrote
        self.nodes: list[Node] = []

    def read(self) -> list[Node]:
        self._refuse_sharing()
        head = self._head()
        for node in self.fx_graph.nodes:
            if node.op == "output":
                break
            if node.op == "placeholder":
                self._append(node, "input", {}, ())
            elif node.op == "get_attr":
                raise TemplateError(
                    f"{node.target}: the forward pass uses this parameter or buffer directly; put it in a layer"
                )
            elif node.op == "call_module":
                self._read_module(node, node is head)
            else:
                self._read_function(node)
        return self.nodes

    def _head(self) -> fx.Node:
        placeholders = [node for node in self.fx_graph.nodes if node.op == "placeholder"]
        if len(placeholders) != 1:
            raise TemplateError(f"a template takes one input, but {_name(self.template)} takes {len(placeholders)}")
        output = next(node for node in self.fx_graph.nodes if node.op == "output")
        last = output.args[0]
        is_linear = (
            isinstance(last, fx.Node)
            and last.op == "call_module"
            and isinstance(self.modules[str(last.target)], nn.Linear)
        )
        if not is_linear:
            what = getattr(last, "target", None) or type(last).__name__
            raise TemplateError(
                f"{what}: a template must end with a linear layer, the head (no softmax behind it, one output)"
            )
        head = cast(fx.Node, last)
        if len(head.users) != 1:
            raise TemplateError(f"{head.target}: the head's output may not be used elsewhere")
        return head

    def _refuse_sharing(self) -> None:
        calls = Counter(str(node.target) for node in self.fx_graph.nodes if node.op == "call_module")
        for target, count in calls.items():
            stateful = any(True for _ in self.modules[target].parameters()) or any(
                True for _ in self.modules[target].buffers()
            )
            if count > 1 and stateful:
                raise TemplateError(
                    f"{target}: this layer is used {count} times; a layer with weights may be used once"
                )
        owner: dict[int, str] = {}
        for name, module in self.modules.items():
            for key, parameter in module._parameters.items():
                if parameter is None:
                    continue
                first = owner.setdefault(id(parameter), name)
                if first != name:
                    raise TemplateError(f"{name}: its {key} is shared with {first}; shared weights cannot grow")

    def _read_module(self, node: fx.Node, is_head: bool) -> None:
        target = str(node.target)
        module = self.modules[target]
        if is_head:
            linear = cast(nn.Linear, module)
            attrs: dict[str, Value] = {"in": linear.in_features, "bias": linear.bias is not None}
            self._append(node, "head", attrs, node.args, target)
            return
        op, attrs = spelling.of_module(target, module)
        self._append(node, op, attrs, node.args, target)
        if getattr(module, "inplace", False):
            self._overwrite(node)

    def _read_function(self, node: fx.Node) -> None:
        target: Any = node.target
        where = f"{node.name} ({spelling.target_name(target)})"
        if self._is_plain_number(node):
            return
        if target in ADDITIONS:
            if len(node.all_input_nodes) != len(node.args) or node.kwargs:
                raise TemplateError(f"{where}: only the addition of two branches can grow")
            self._append(node, "add", {}, node.args)
        elif target in CONCATENATIONS:
            self._read_concatenation(node, where)
        elif target in PRODUCTS:
            raise TemplateError(
                f"{where}: multiplication of two branches cannot grow; only additions and concatenations can"
            )
        elif target in RESHAPES:
            self._read_reshape(node, where)
        elif target in MEANS:
            self._append(node, "mean", spelling.of_mean(node, where), node.args[:1])
        else:
            op, attrs = spelling.of_function(node, where)
            self._append(node, op, attrs, node.args[:1] or (node.kwargs["input"],))
        if target in IN_PLACE or node.kwargs.get("inplace", False):
            self._overwrite(node)

    def _is_plain_number(self, node: fx.Node) -> bool:
        """Whether this asks for a size rather than computing with pixels."""
        if self.shapes is not None:
            return self.shapes.get(node) is None
        return node.target in SHAPE_QUERIES

    def _read_concatenation(self, node: fx.Node, where: str) -> None:
        branches = node.args[0] if node.args else node.kwargs["tensors"]
        axis = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        rank = len(self.shapes[node] or ()) if self.shapes is not None else None
        if axis != 1 and not (isinstance(axis, int) and rank is not None and axis + rank == 1):
            raise TemplateError(f"{where}: only the channel axis (dim=1) can be concatenated, but got dim={axis}")
        self._append(node, "cat", {}, tuple(cast(Any, branches)))

    def _read_reshape(self, node: fx.Node, where: str) -> None:
        op = "flatten"
        source = cast(fx.Node, node.args[0])
        if self.shapes is not None:
            before, after = self.shapes[source], self.shapes[node]
            if before is None or after is None or after != (before[0], _product(before[1:])):
                if before != after:
                    raise TemplateError(f"{where}: {before} to {after} is no flattening; use flatten(1)")
                op = "identity"
        self._append(node, op, {}, (source,))

    def _overwrite(self, node: fx.Node) -> None:
        self.aliases[cast(fx.Node, node.args[0])] = node

    def _append(
        self,
        node: fx.Node,
        op: str,
        attrs: dict[str, Value],
        inputs: tuple[Any, ...],
        name: str | None = None,
    ) -> None:
        sources = []
        for source in inputs:
            if not isinstance(source, fx.Node):
                raise TemplateError(f"{node.name}: takes {source!r}, which is no branch of the network")
            while source in self.aliases:
                source = self.aliases[source]
            sources.append(self.names[source])
        taken = {known.name for known in self.nodes}
        chosen = name if name is not None and name not in taken else node.name
        while chosen in taken:
            chosen += "_"
        if op == "input":
            chosen = "input"
        self.names[node] = chosen
        if op in ("linear", "head") and self.shapes is not None:
            read = self.shapes[cast(fx.Node, inputs[0])]
            if read is None or len(read) != 2:
                raise TemplateError(f"{chosen}: a linear layer reads flattened features, but got shape {read}")
        shape = (self.shapes[node] or ())[1:] if self.shapes is not None else ()
        self.nodes.append(Node(chosen, op, tuple(sources), attrs, shape))


def _symbolic(template: nn.Module) -> fx.Graph:
    try:
        graph = _Tracer().trace(template)
    except TemplateError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TemplateError(f"{_name(template)} cannot be traced by torch.fx: {reason}") from error
    _drop_unused(graph, dict(template.named_modules()))
    return graph


def _drop_unused(graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
    """Remove what nobody reads, unless it overwrites what somebody does."""
    for node in reversed(list(graph.nodes)):
        in_place = node.target in IN_PLACE or bool(node.kwargs.get("inplace", False))
        if node.op == "call_module":
            in_place = getattr(modules[str(node.target)], "inplace", False)
        if not node.users and not in_place and node.op not in ("output", "placeholder"):
            graph.erase_node(node)


def _shapes(
    template: nn.Module, graph: fx.Graph, input_shape: tuple[int, ...]
) -> dict[fx.Node, tuple[int, ...] | None]:
    """Every node's shape for a batch of two, by running the graph once; the template is left as it was.

    Two real images are cheaper than PyTorch's shape propagation, which imports its whole compiler.
    """
    shapes: dict[fx.Node, tuple[int, ...] | None] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            shapes[n] = tuple(result.shape) if isinstance(result, Tensor) else None
            return result

    modes = {module: module.training for module in template.modules()}
    example = next(template.parameters(), torch.empty(0))
    try:
        template.eval()
        with torch.no_grad():
            Recorder(fx.GraphModule(template, graph)).run(example.new_zeros((2, *input_shape)))
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise TemplateError(
            f"{_name(template)} does not take inputs of shape {list(input_shape)} (channels first): {reason}"
        ) from error
    finally:
        for module, training in modes.items():
            module.training = training
    return shapes


def _name(template: nn.Module) -> str:
    return type(template).__name__


def _product(sizes: tuple[int, ...]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
