"""Where integers stand on the line of numbers: a scale, and the integer that means zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.codecs.rounding import LARGEST, as_int8, symmetric_scale, to_integers, to_numbers

LOWEST = -128
NOTHING = 2.0**-100  # a scale below which numbers count as zeros: a float32 has fewer and fewer digits there
LARGEST_BIAS = 2**30  # as int32, with room for what is added to it


@dataclass(frozen=True)
class Grid:
    """The 8-bit integers of one tensor of activations. Zero is always one of them: padding is exact."""

    scale: float  # a float32: files of other programs hold no more
    zero_point: int = 0
    low: int = -LARGEST
    high: int = LARGEST

    def quantize(self, values: Tensor) -> Tensor:
        """Numbers as int8."""
        return as_int8(values, self.scale, self.zero_point, self.low, self.high)

    def rounded(self, values: Tensor) -> Tensor:
        """The numbers that are left of these once they have been integers."""
        return to_numbers(
            to_integers(values, self.scale, self.zero_point, self.low, self.high), self.scale, self.zero_point
        )

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number that is not clipped."""
        return (self.low - self.zero_point) * self.scale, (self.high - self.zero_point) * self.scale


def grid_for(low: float, high: float, *, symmetric: bool) -> Grid:
    """The grid that covers a range, widened to hold zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        return Grid(_scale(max(-low, high) / LARGEST))
    scale = _scale((high - low) / (LARGEST - LOWEST))
    return Grid(scale, max(LOWEST, min(LARGEST, round(LOWEST - low / scale))), LOWEST, LARGEST)


def stored_grid(scale: float, zero_point: int, *, symmetric: bool) -> Grid:
    """The grid that was written down as these two."""
    return Grid(scale) if symmetric else Grid(scale, zero_point, LOWEST, LARGEST)


def _scale(value: float) -> float:
    """As a float32; where everything is zero any scale will do."""
    return float(torch.tensor(value, dtype=torch.float32)) if value > NOTHING else 1.0


def weight_scales(weight: Tensor, *, per_channel: bool, bias: Tensor | None = None, input_scale: float = 1.0) -> Tensor:
    """A float32 scale for every output channel, the first dimension; all the same where they share one.

    A bias has no scale of its own, but that of the input times that of the weights: with a bias, a channel whose
    weights are next to nothing gets a scale at which its bias fits into an int32.
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
    """A bias in steps of the input's scale times the weights', whole ones, in float64: a float32 holds fewer digits."""
    return (bias.detach().double() / (scales.double() * input_scale)).round_()


def along_channels(scales: Tensor, weight: Tensor) -> Tensor:
    """Scales in a shape that multiplies a weight channel by channel."""
    return scales.view(-1, *[1] * (weight.dim() - 1))
