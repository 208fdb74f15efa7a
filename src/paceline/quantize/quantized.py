"""Quantized network: int8 weights, int32 biases and scales, with conversion to and from stored tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.codecs.rounding import as_int8
from paceline.errors import UsageError
from paceline.quantize.graph import Graph
from paceline.quantize.grid import Grid, along_channels, bias_steps, weight_scales
from paceline.quantize.ops import LinearOp

LARGEST_SUM = 2**31 - 1
INTEGERS_FILE = "integers.safetensors"  # in the folder of a study
PARTS = ("weight", "scales", "bias")


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """Quantized weight and bias of a layer."""

    weight: Tensor  # int8, in the shape of the layer's weight
    scales: Tensor  # float32, one per output channel
    bias: Tensor  # int32, with scale = input scale x channel scale


@dataclass(frozen=True, eq=False)
class Quantized:
    """A graph with the grids of its activations and the integers of its layers."""

    graph: Graph
    grids: Mapping[str, Grid]
    weights: Mapping[str, IntegerWeights]

    def grid(self, name: str) -> Grid:
        return self.grids[self.graph.grid_owner(name)]

    @property
    def weight_bytes(self) -> int:
        """Size of the parameters: one byte per weight, four per bias and per scale."""
        return sum(w.weight.numel() + 4 * (w.bias.numel() + w.scales.numel()) for w in self.weights.values())


@torch.no_grad()
def quantized(graph: Graph, grids: Mapping[str, Grid], *, per_channel: bool) -> Quantized:
    """Quantize weights to int8 and biases to int32; `grids` holds those of the activations."""
    weights = {}
    for op in graph.layers:
        input_scale = grids[graph.grid_owner(op.inputs[0])].scale
        weights[op.name] = _integers(op, input_scale, per_channel=per_channel)
    return Quantized(graph, grids, weights)


def restored(graph: Graph, grids: Mapping[str, Grid], tensors: Mapping[str, Tensor]) -> Quantized:
    """Rebuild a quantized network from the tensors that `tensors_of` returned."""
    weights = {}
    for op in graph.layers:
        weight, scales, bias = (tensors.get(f"{op.name}.{part}") for part in PARTS)
        if weight is None or scales is None or bias is None or weight.shape != op.weight.shape:
            raise UsageError(
                f"the stored integers belong to another model: they do not fit layer {op.name!r}; quantize it again"
            )
        weights[op.name] = IntegerWeights(weight, scales, bias)
    tensors_in = (graph.input, *(op.name for op in graph.ops))
    missing = [name for name in tensors_in if graph.has_grid(name) and name not in grids]
    if missing:
        raise UsageError(f"the stored integers belong to another model: {missing[0]!r} has no range; quantize it again")
    return Quantized(graph, grids, weights)


def tensors_of(model: Quantized) -> dict[str, Tensor]:
    """Return all integers and scales by name, for storing."""
    return {
        f"{name}.{part}": getattr(weights, part).contiguous().clone()
        for name, weights in model.weights.items()
        for part in PARTS
    }


def _integers(op: LinearOp, input_scale: float, *, per_channel: bool) -> IntegerWeights:
    scales = weight_scales(op.weight, per_channel=per_channel, bias=op.bias, input_scale=input_scale)
    weight = as_int8(op.weight, along_channels(scales, op.weight))
    bias = bias_steps(op.bias, scales, input_scale).to(torch.int64)
    largest = 255 * weight.flatten(1).long().abs().sum(1) + bias.abs()
    if int(largest.max()) > LARGEST_SUM:
        raise UsageError(
            f"layer {op.name!r} sums too many products: its int32 accumulator could overflow; use a smaller layer"
        )
    return IntegerWeights(weight, scales, bias.to(torch.int32))
