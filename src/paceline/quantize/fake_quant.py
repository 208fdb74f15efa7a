"""A network in floating point whose numbers are rounded as integers would be: what each step costs, and fine-tuning.

What rounding did to each tensor: its signal over the noise that was added, in decibels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.codecs.rounding import to_integers, to_numbers
from paceline.quantize.graph import Graph, Seen
from paceline.quantize.grid import Grid, along_channels, bias_steps, weight_scales
from paceline.quantize.ops import LinearOp, Op, Relu


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What of a network is rounded."""

    per_channel: bool = True
    grids: Mapping[str, Grid] | None = None  # of activations, by tensor; None leaves them in float
    biases: bool = False  # to int32, in the scale of the input times that of the weights


def is_wide(graph: Graph, op: Op) -> bool:
    """Whether an operation makes the scores: they stay as fine as they were summed up, since nothing follows them."""
    if op.name != graph.output or not isinstance(op, LinearOp) or op.clip is not None:
        return False
    return not any(op.name in other.inputs for other in graph.ops)


class Simulated(nn.Module):
    """A graph with rounded weights and, where asked, activations and biases. Its parameters can be trained."""

    def __init__(self, graph: Graph, rounding: Rounding) -> None:
        super().__init__()
        self.graph = graph
        self.rounding = rounding
        for op in graph.layers:
            self.register_parameter(f"{op.name}_weight", nn.Parameter(op.weight.clone()))
            self.register_parameter(f"{op.name}_bias", nn.Parameter(op.bias.clone()))

    def forward(self, images: Tensor, seen: Seen | None = None) -> Tensor:
        return self.graph.walk(self._on_grid(self.graph.input, images), self._make, seen)

    def _make(self, op: Op, inputs: list[Any]) -> Any:
        value = self._layer(op, inputs[0]) if isinstance(op, LinearOp) else op.apply(*inputs)
        # What keeps its input's grid is on it already, but for a ceiling that lies between two steps.
        if is_wide(self.graph, op) or (op.keeps_grid and not isinstance(op, Relu)):
            return value
        return self._on_grid(self.graph.grid_owner(op.name), value)

    def trained(self) -> Graph:
        """The graph with the weights that this has now."""
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
    """The numbers that are left of a bias once it has been an int32."""
    return bias_steps(bias, scales, input_scale) * (scales.double() * input_scale)


def rounded_weight(weight: Tensor, scales: Tensor) -> Tensor:
    """The numbers that are left of a weight once it has been int8."""
    shaped = along_channels(scales, weight)
    return to_numbers(to_integers(weight.detach(), shaped), shaped)


def _straight_through(values: Tensor, rounded: Tensor) -> Tensor:
    """Rounded numbers whose gradient is that of the numbers before (Bengio et al. 2013)."""
    if not (torch.is_grad_enabled() and values.requires_grad):
        return rounded
    return values + (rounded - values.detach())


def decibels(signal: float, noise: float) -> float | None:
    """None where nothing was lost, or there was nothing."""
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None


@torch.no_grad()
def activation_noise(graph: Graph, simulated: Simulated, batches: Iterable[Tensor]) -> dict[str, float | None]:
    """Of every tensor against the float network's own: what all rounding before it has added up to."""
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}
    for images in batches:
        exact: dict[str, Tensor] = {}

        def keep(name: str, values: Tensor, exact: dict[str, Tensor] = exact) -> None:
            exact[name] = values.clone()  # an operation in float may change it in place

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
    """Of a layer's weights."""
    rounded = rounded_weight(op.weight, weight_scales(op.weight, per_channel=per_channel))
    return decibels(float(op.weight.double().square().sum()), float((rounded - op.weight).double().square().sum()))
