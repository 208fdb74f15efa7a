"""From any torch model to the few operations that can be had in integers, by way of torch.fx."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from paceline.errors import UsageError
from paceline.quantize.fx_readers import FUNCTIONS, METHODS, MODULES, Reading
from paceline.quantize.graph import Graph, simplified
from paceline.quantize.ops import FloatOp, Op

Value = Any


def trace(model: nn.Module, example: Tensor) -> Graph:
    """The operations of a model in evaluation mode, BatchNorm folded, dropout dropped.

    `example` is a batch of inputs: shapes are taken from it. What cannot be had in integers becomes a `FloatOp`.
    """
    model = copy.deepcopy(model).eval()
    traced = _traced(model, example)
    ops: list[Op] = []
    same: dict[str, str] = {}  # what passes a tensor on as it is
    input_name, output_name = "", ""
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            input_name = node.name
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise UsageError("the model returns several tensors; only models with one are quantized")
            output_name = same.get(node.args[0].name, node.args[0].name)
        else:
            found = _read(node, traced, same)
            if isinstance(found, str):
                same[node.name] = found
            else:
                ops += found
    graph = simplified(Graph(input_name, tuple(ops), output_name))
    _check(graph, model, example)
    return graph


@torch.no_grad()
def _check(graph: Graph, model: nn.Module, example: Tensor) -> None:
    """A model that changes its tensors in place, say, may do other things than its trace."""
    expected, found = model(example.clone()), graph.run(example.clone())
    # Folding only multiplies in another order: far less than a thousandth.
    if found.shape != expected.shape or not torch.allclose(found, expected, 1e-3, 1e-3 * float(expected.abs().max())):
        raise UsageError("the traced model gives other scores than the model itself; does it change tensors in place?")


@torch.no_grad()
def _traced(model: nn.Module, example: Tensor) -> fx.GraphModule:
    try:
        traced = fx.symbolic_trace(model)
    except Exception as error:  # whatever a user's forward does with what is no tensor yet
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"the model cannot be traced ({type(error).__name__}: {reason}); its forward must not decide by the "
            "values of tensors"
        ) from error
    if len(traced.graph.find_nodes(op="placeholder")) != 1:
        raise UsageError("the model takes several inputs; only models with one tensor as input are quantized")
    ShapeProp(traced).propagate(example)
    return traced


def _read(node: fx.Node, traced: fx.GraphModule, same: dict[str, str]) -> list[Op] | str:
    """The operations that a node stands for, or the tensor that it passes on."""
    reader: Callable[[Reading], list[Op] | str | None] | None = None
    reading = Reading(node, same)
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        reading = Reading(node, same, module)
        reader = MODULES.get(type(module))
    elif node.op == "call_function":
        reader = FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        reader = METHODS.get(str(node.target))
    found = reader(reading) if reader is not None else None
    return [_in_float(node, reading, traced)] if found is None else found


def _in_float(node: fx.Node, reading: Reading, traced: fx.GraphModule) -> FloatOp:
    """The node as it is: its arguments with tensors in place of names."""
    nodes = list(node.all_input_nodes)

    def call(*values: Value) -> Value:
        given = dict(zip(nodes, values, strict=True))
        args = fx.map_arg(node.args, lambda n: given[n])
        kwargs = fx.map_arg(node.kwargs, lambda n: given[n])
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
