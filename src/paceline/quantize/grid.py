"""Quantization grids: scale and zero point of activations, scales of weights and biases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.codecs.rounding import LARGEST, as_int8, symmetric_scale, to_integers, to_numbers

LOWEST = -128
NOTHING = 2.0**-100  # smaller scales count as zero: float32 loses precision there
LARGEST_BIAS = 2**30  # as int32, with headroom for the sum of products


@dataclass(frozen=True)
class Grid:
    """Scale and zero point of an activation tensor in 8-bit integers; zero is exact, and so is padding."""

    scale: float  # a float32 value, as ONNX stores it
    zero_point: int = 0
    low: int = -LARGEST
    high: int = LARGEST

    def quantize(self, values: Tensor) -> Tensor:
        """Return values as int8."""
        return as_int8(values, self.scale, self.zero_point, self.low, self.high)

    def rounded(self, values: Tensor) -> Tensor:
        """Round values to the grid and return them as floats."""
        return to_numbers(
            to_integers(values, self.scale, self.zero_point, self.low, self.high), self.scale, self.zero_point
        )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest value that is not clipped."""
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale


def grid_for(low: float, high: float, *, symmetric: bool) -> Grid:
    """Return the grid that covers a range, extended to include zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        return Grid(_scale(max(-low, high) / LARGEST))
    scale = _scale((high - low) / (LARGEST - LOWEST))
    return Grid(scale, max(LOWEST, min(LARGEST, round(LOWEST - low / scale))), LOWEST, LARGEST)


def stored_grid(scale: float, zero_point: int, *, symmetric: bool) -> Grid:
    """Rebuild a grid from its stored scale and zero point."""
    return Grid(scale) if symmetric else Grid(scale, zero_point, LOWEST, LARGEST)


def _scale(value: float) -> float:
    """Round to float32; return 1 if the range is empty, where any scale works."""
    return float(torch.tensor(value, dtype=torch.float32)) if value > NOTHING else 1.0


def weight_scales(weight: Tensor, *, per_channel: bool, bias: Tensor | None = None, input_scale: float = 1.0) -> Tensor:
    """Return a float32 scale per output channel (the first dimension); all are equal without `per_channel`.

    A bias has the scale input scale x weight scale. With `bias`, the scale of a channel with very small weights is
    raised until its bias fits into an int32.
    """
    largest = weight.detach().abs().flatten(1).amax(1)
    if not per_channel:
        largest = largest.amax().expand(len(largest))
    scales = symmetric_scale(largest).to(torch.float32)
    if bias is not None:
        least = (bias.detach().abs().double() / (input_scale * LARGEST_BIAS)).to(torch.float32)
        scales = torch.maximum(scales, least if per_channel else least.amax().expand(len(least)))
    return torch.where(scales > NOTHING, scales, 1.0)


def bias_steps(bias: Tensor, scales: Tensor, input_scale: float) -> Tensor:
    """Round a bias to whole steps of input scale x weight scale, in float64: float32 cannot hold every int32."""
    return (bias.detach().double() / (scales.double() * input_scale)).round_()


def along_channels(scales: Tensor, weight: Tensor) -> Tensor:
    """Reshape scales to broadcast over the output channels of a weight."""
    return scales.view(-1, *[1] * (weight.dim() - 1))
