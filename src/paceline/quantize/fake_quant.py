"""Fake quantization: a float network with rounded weights and activations, to fine-tune it and to measure noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.codecs.rounding import to_integers, to_numbers
from paceline.quantize.graph import Graph, OnTensor
from paceline.quantize.ops import LinearOp, Op, Relu
from paceline.quantize.quantized import Grid, along_channels, bias_steps, weight_scales


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """Settings of fake quantization: which tensors are rounded, besides the weights, and how."""

    per_channel: bool = True  # one scale per output channel of a weight; else one per weight
    grids: Mapping[str, Grid] | None = None  # of activations, by tensor name; None: activations stay in float
    biases: bool = False  # whether biases are rounded, to int32 multiples of input scale x weight scale


def computes_scores(graph: Graph, op: Op) -> bool:
    """Return whether an operation is a layer without ReLU that computes the scores (logits), the output of the graph.

    The result is False if another operation reads the output. In integer execution, scores stay in int32.
    """
    if op.name != graph.output or not isinstance(op, LinearOp) or op.clip is not None:
        return False
    return not any(op.name in other.inputs for other in graph.ops)


class Simulated(nn.Module):
    """A module that computes a graph in floats, with rounded weights and optionally rounded activations and biases.

    Its parameters are the unrounded weights and biases, which are trainable.
    """

    def __init__(self, graph: Graph, rounding: Rounding) -> None:
        super().__init__()
        self.graph = graph
        self.rounding = rounding
        for op in graph.layers:
            self.register_parameter(f"{op.name}_weight", nn.Parameter(op.weight.clone()))
            self.register_parameter(f"{op.name}_bias", nn.Parameter(op.bias.clone()))

    def forward(self, images: Tensor, on_tensor: OnTensor | None = None) -> Tensor:
        return self.graph.walk(self._on_grid(self.graph.input, images), self._compute, on_tensor)

    def _compute(self, op: Op, inputs: list[Any]) -> Any:
        value = self._layer(op, inputs[0]) if isinstance(op, LinearOp) else op.apply(*inputs)
        # Max pooling and flattening return values that are already rounded. A ReLU may not: the ceiling of a ReLU6 can
        # lie between two values of the grid.
        if computes_scores(self.graph, op) or (op.keeps_grid and not isinstance(op, Relu)):
            return value
        return self._on_grid(self.graph.grid_owner(op.name), value)

    def current_graph(self) -> Graph:
        """Return a copy of the graph with the current, unrounded parameters."""
        return self.graph.with_layers({op.name: self._parameters_of(op) for op in self.graph.layers})

    def _parameters_of(self, op: LinearOp) -> tuple[Tensor, Tensor]:
        weight, bias = self.get_parameter(f"{op.name}_weight"), self.get_parameter(f"{op.name}_bias")
        return weight.detach().clone(), bias.detach().clone()

    def _layer(self, op: LinearOp, x: Tensor) -> Tensor:
        weight: Tensor = self.get_parameter(f"{op.name}_weight")
        bias: Tensor = self.get_parameter(f"{op.name}_bias")
        grid = self._grid_of(op.inputs[0]) if self.rounding.biases else None
        known = {} if grid is None else {"bias": bias, "input_scale": grid.scale}
        scales = weight_scales(weight, per_channel=self.rounding.per_channel, **known)  # type: ignore[arg-type]
        weight = _straight_through(weight, rounded_weight(weight, scales))
        if grid is not None:
            bias = _straight_through(bias, rounded_bias(bias.detach(), scales, grid.scale).float())
        return op.finish(op.multiply(x, weight, bias))

    def _grid_of(self, name: str) -> Grid | None:
        return None if self.rounding.grids is None else self.rounding.grids.get(self.graph.grid_owner(name))

    def _on_grid(self, name: str, values: Any) -> Any:
        grid = self._grid_of(name)
        if grid is None or not isinstance(values, Tensor):
            return values
        return _straight_through(values.clamp(*grid.range), grid.rounded(values.detach()))


def rounded_bias(bias: Tensor, scales: Tensor, input_scale: float) -> Tensor:
    """Return a bias, rounded to whole multiples of input scale x weight scale, as float64."""
    return bias_steps(bias, scales, input_scale) * (scales.double() * input_scale)


def rounded_weight(weight: Tensor, scales: Tensor) -> Tensor:
    """Return a weight, rounded to whole multiples (from -127 to 127) of its scales, as floats."""
    shaped = along_channels(scales, weight)
    return to_numbers(to_integers(weight.detach(), shaped), shaped)


def _straight_through(values: Tensor, rounded: Tensor) -> Tensor:
    """Return the rounded values, with the gradient of the unrounded values (straight-through, Bengio et al. 2013)."""
    if not (torch.is_grad_enabled() and values.requires_grad):
        return rounded
    return values + (rounded - values.detach())


def decibels(signal: float, noise: float) -> float | None:
    """Return the ratio of two sums of squares in decibels, or None if one of them is zero."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None


@torch.no_grad()
def activation_noise(graph: Graph, simulated: Simulated, batches: Iterable[Tensor]) -> dict[str, float | None]:
    """Return the signal-to-noise ratio of every tensor in decibels, by tensor name.

    Noise is the difference between the tensor in `simulated` and in the float network. A ratio is None if signal or
    noise is zero.
    """
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for images in batches:
        exact: dict[str, Tensor] = {}

        def keep(name: str, values: Tensor, exact: dict[str, Tensor] = exact) -> None:
            exact[name] = values.clone()  # a later operation may change the tensor in place

        graph.run(images, keep)

        def compare(name: str, values: Tensor, exact: dict[str, Tensor] = exact) -> None:
            if values.is_floating_point():
                original = exact.pop(name).double()
                signal[name] = signal.get(name, 0.0) + float(original.square().sum())
                noise[name] = noise.get(name, 0.0) + float((values.double() - original).square().sum())

        simulated(images, compare)
    return {name: decibels(signal[name], noise[name]) for name in signal}


@torch.no_grad()
def weight_noise(op: LinearOp, *, per_channel: bool) -> float | None:
    """Return the signal-to-noise ratio of a layer's rounded weights in decibels; None if signal or noise is zero."""
    rounded = rounded_weight(op.weight, weight_scales(op.weight, per_channel=per_channel))
    return decibels(float(op.weight.double().square().sum()), float((rounded - op.weight).double().square().sum()))
