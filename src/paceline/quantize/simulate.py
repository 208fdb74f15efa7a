"""A network in floating point whose numbers are rounded as integers would be: what each step costs, and fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.codecs.rounding import to_integers, to_numbers
from paceline.quantize.graph import Graph, Seen
from paceline.quantize.grid import Grid, along_channels, bias_steps, weight_scales
from paceline.quantize.ops import Layer, Op, Relu


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """What of a network is rounded."""

    per_channel: bool = True
    grids: Mapping[str, Grid] | None = None  # of activations, by tensor; None leaves them in float
    biases: bool = False  # to int32, in the scale of the input times that of the weights


def is_wide(graph: Graph, op: Op) -> bool:
    """Whether an operation makes the scores: they stay as fine as they were summed up, since nothing follows them."""
    if op.name != graph.output or not isinstance(op, Layer) or op.clip is not None:
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
        value = self._layer(op, inputs[0]) if isinstance(op, Layer) else op.apply(*inputs)
        # What keeps its input's grid is on it already, but for a ceiling that lies between two steps.
        if is_wide(self.graph, op) or (op.keeps_grid and not isinstance(op, Relu)):
            return value
        return self._on_grid(self.graph.grid_owner(op.name), value)

    def trained(self) -> Graph:
        """The graph with the weights that this has now."""
        return self.graph.with_layers({op.name: self._parameters_of(op) for op in self.graph.layers})

    def _parameters_of(self, op: Layer) -> tuple[Tensor, Tensor]:
        weight, bias = self.get_parameter(f"{op.name}_weight"), self.get_parameter(f"{op.name}_bias")
        return weight.detach().clone(), bias.detach().clone()

    def _layer(self, op: Layer, x: Tensor) -> Tensor:
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
