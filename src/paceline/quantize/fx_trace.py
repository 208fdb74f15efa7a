"""Trace a PyTorch model with torch.fx into a graph of operations that can be quantized."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from paceline.errors import UsageError
from paceline.quantize.fx_readers import FUNCTIONS, METHODS, MODULES, Converted, Reading
from paceline.quantize.graph import Graph, simplify
from paceline.quantize.ops import FloatOp, Op


def trace(model: nn.Module, example: Tensor) -> Graph:
    """Trace a model in evaluation mode and return its graph, with BatchNorm folded and dropout removed.

    `example` is a batch of inputs that determines the shapes. An operation without integer implementation becomes a
    `FloatOp`.
    """
    model = copy.deepcopy(model).eval()
    traced = _traced(model, example)
    ops: list[Op] = []
    aliases: dict[str, str] = {}
    input_name, output_name = "", ""
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            input_name = node.name
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise UsageError("the model returns several tensors; quantize a model that returns a single tensor")
            output_name = aliases.get(node.args[0].name, node.args[0].name)
        else:
            converted = _convert(node, traced, aliases)
            if isinstance(converted, str):
                aliases[node.name] = converted
            else:
                ops += converted
    graph = simplify(Graph(input_name, tuple(ops), output_name))
    _check(graph, model, example)
    return graph


@torch.no_grad()
def _check(graph: Graph, model: nn.Module, example: Tensor) -> None:
    """Raise UsageError if the outputs of the graph and of the model differ.

    This happens, for example, if the model changes tensors in place.
    """
    expected, scores = model(example.clone()), graph.run(example.clone())
    # Folding only changes the order of multiplications: the difference is far below a thousandth.
    if scores.shape != expected.shape or not torch.allclose(scores, expected, 1e-3, 1e-3 * float(expected.abs().max())):
        raise UsageError(
            "the outputs of the traced model differ from the model's; do not change tensors in place in forward"
        )


@torch.no_grad()
def _traced(model: nn.Module, example: Tensor) -> fx.GraphModule:
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # a user's forward can raise anything when it runs on proxies
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"the model cannot be traced ({type(error).__name__}: {reason}); its forward must not branch on the "
            "values of tensors"
        ) from error
    if len(traced.graph.find_nodes(op="placeholder")) != 1:
        raise UsageError("the model takes several inputs; quantize a model that takes a single tensor")
    ShapeProp(traced).propagate(example)
    return traced


def _convert(node: fx.Node, traced: fx.GraphModule, aliases: dict[str, str]) -> list[Op] | str:
    """Return the operations of a node, or the name of its input if the node returns this input unchanged."""
    reader: Callable[[Reading], Converted] | None = None
    module = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
    reading = Reading(node, aliases, module)
    if node.op == "call_module":
        reader = MODULES.get(type(module))  # type: ignore[arg-type]
    elif node.op == "call_function":
        reader = FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        reader = METHODS.get(str(node.target))
    converted = reader(reading) if reader is not None else None
    return [_float_op(node, reading, traced)] if converted is None else converted


def _float_op(node: fx.Node, reading: Reading, traced: fx.GraphModule) -> FloatOp:
    """Return a FloatOp for a node without integer implementation; its `call` runs the node on the input tensors."""
    nodes = list(node.all_input_nodes)

    def call(*values: Any) -> Any:
        tensors = dict(zip(nodes, values, strict=True))
        args = fx.map_arg(node.args, lambda n: tensors[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: tensors[n])
        if node.op == "call_module":
            return traced.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "get_attr":
            return fx.Interpreter(traced).fetch_attr(str(node.target))
        assert callable(node.target)
        return node.target(*args, **kwargs)

    module = reading.module
    what = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
    inputs = tuple(reading.name_of(n) for n in nodes)
    return FloatOp(name=node.name, inputs=inputs, what=what, call=call)
