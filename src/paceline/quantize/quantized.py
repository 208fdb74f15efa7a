"""Quantized network: int8 weights, int32 biases, and the scale and zero point of each activation (its grid).

`quantize_graph` builds a quantized network, `tensors_of` returns the network's integers and scales for storing, and
`restore` rebuilds the network from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.codecs.rounding import LARGEST, as_int8, symmetric_scale, to_integers, to_numbers
from paceline.errors import UsageError
from paceline.quantize.graph import Graph
from paceline.quantize.ops import LinearOp

LOWEST = -128
SMALLEST_SCALE = 2.0**-100  # smaller scales are treated as zero, because float32 loses precision there
LARGEST_BIAS = 2**30  # largest int32 that represents a bias, with headroom for the sum of products
LARGEST_SUM = 2**31 - 1
INTEGERS_FILE = "integers.safetensors"  # file of the tensors of `tensors_of`, in the folder of a study
PARTS = ("weight", "scales", "bias")  # stored tensors of each layer


@dataclass(frozen=True)
class Grid:
    """Quantization parameters of an activation tensor: scale, zero point, lowest and highest integer.

    An integer i represents the value (i - zero_point) * scale. Zero, and therefore padding, is represented exactly.
    """

    scale: float  # a float32 value, as ONNX stores it
    zero_point: int = 0
    low: int = -LARGEST
    high: int = LARGEST

    def quantize(self, values: Tensor) -> Tensor:
        """Return the int8 integers that represent the values, after rounding and clipping."""
        return as_int8(values, self.scale, self.zero_point, self.low, self.high)

    def rounded(self, values: Tensor) -> Tensor:
        """Return the values after rounding and clipping, as floats."""
        return to_numbers(
            to_integers(values, self.scale, self.zero_point, self.low, self.high), self.scale, self.zero_point
        )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that are not clipped."""
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale


def grid_for(low: float, high: float, *, symmetric: bool) -> Grid:
    """Return the grid (scale, zero point and limits) that covers zero and the values from `low` to `high`.

    A symmetric grid has zero point 0 and covers as much below zero as above.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        return Grid(_scale(max(-low, high) / LARGEST))
    scale = _scale((high - low) / (LARGEST - LOWEST))
    return Grid(scale, max(LOWEST, min(LARGEST, round(LOWEST - low / scale))), LOWEST, LARGEST)


def stored_grid(scale: float, zero_point: int, *, symmetric: bool) -> Grid:
    """Rebuild a grid from its stored scale and zero point; the zero point of a symmetric grid is always 0."""
    return Grid(scale) if symmetric else Grid(scale, zero_point, LOWEST, LARGEST)


def _scale(value: float) -> float:
    """Return a scale, rounded to float32, or 1 for a scale of (nearly) 0, which occurs if all values are zero."""
    return float(torch.tensor(value, dtype=torch.float32)) if value > SMALLEST_SCALE else 1.0


def weight_scales(weight: Tensor, *, per_channel: bool, bias: Tensor | None = None, input_scale: float = 1.0) -> Tensor:
    """Return one float32 scale per output channel (the first dimension of the weight).

    Without `per_channel`, all channels have the same scale. A bias is stored as an int32 multiple of input scale x
    weight scale. If `bias` is passed, a scale is increased where this int32 would otherwise be too large.
    """
    largest = weight.detach().abs().flatten(1).amax(1)
    if not per_channel:
        largest = largest.amax().expand(len(largest))
    scales = symmetric_scale(largest).to(torch.float32)
    if bias is not None:
        least = (bias.detach().abs().double() / (input_scale * LARGEST_BIAS)).to(torch.float32)
        scales = torch.maximum(scales, least if per_channel else least.amax().expand(len(least)))
    return torch.where(scales > SMALLEST_SCALE, scales, 1.0)


def bias_steps(bias: Tensor, scales: Tensor, input_scale: float) -> Tensor:
    """Return a bias in units of input scale x weight scale, rounded to whole numbers.

    The result is float64, because float32 cannot hold every int32.
    """
    return (bias.detach().double() / (scales.double() * input_scale)).round_()


def along_channels(scales: Tensor, weight: Tensor) -> Tensor:
    """Reshape scales to broadcast over the output channels of a weight."""
    return scales.view(-1, *[1] * (weight.dim() - 1))


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """Quantized weight and bias of a layer."""

    weight: Tensor  # int8, in the shape of the layer's weight
    scales: Tensor  # float32, one per output channel
    bias: Tensor  # int32, in units of input scale x channel scale


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized network: a graph, the grids of its activations, and the integer weights and biases of its layers.

    The grid of an activation is its scale, zero point and limits.
    """

    graph: Graph
    grids: Mapping[str, Grid]
    weights: Mapping[str, IntegerWeights]

    def grid(self, name: str) -> Grid:
        return self.grids[self.graph.grid_owner(name)]

    @property
    def weight_bytes(self) -> int:
        """Size of all parameters in bytes: one per weight, four per bias and per scale."""
        return sum(w.weight.numel() + 4 * (w.bias.numel() + w.scales.numel()) for w in self.weights.values())


@torch.no_grad()
def quantize_graph(graph: Graph, grids: Mapping[str, Grid], *, per_channel: bool) -> Quantized:
    """Quantize the weights of a graph to int8 and its biases to int32.

    `grids` are the grids (scale, zero point and limits) of the activations, by tensor name. Raises UsageError if the
    int32 sums of a layer could overflow.
    """
    weights = {}
    for op in graph.layers:
        input_scale = grids[graph.grid_owner(op.inputs[0])].scale
        weights[op.name] = _integers(op, input_scale, per_channel=per_channel)
    return Quantized(graph, grids, weights)


def restore(graph: Graph, grids: Mapping[str, Grid], tensors: Mapping[str, Tensor]) -> Quantized:
    """Rebuild a quantized network from the tensors that `tensors_of` returned.

    Raises UsageError if tensors or grids do not fit the graph.
    """
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
    """Return the tensors to store, by name such as `fc.weight`: integer weights, integer biases and scales."""
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
