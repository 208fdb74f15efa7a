"""What rounding did to each tensor: its signal over the noise that was added, in decibels."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.quantize.graph import Graph
from paceline.quantize.grid import weight_scales
from paceline.quantize.ops import Layer
from paceline.quantize.simulate import Simulated, rounded_weight


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
def weight_noise(op: Layer, *, per_channel: bool) -> float | None:
    """Of a layer's weights."""
    rounded = rounded_weight(op.weight, weight_scales(op.weight, per_channel=per_channel))
    return decibels(float(op.weight.double().square().sum()), float((rounded - op.weight).double().square().sum()))
