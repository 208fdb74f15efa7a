"""Rounding to 8-bit integers, shared by the codec int8 and by model quantisation."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127  # symmetric scales do not use -128, so that x and -x become opposite integers


def symmetric_scale(largest: Tensor) -> Tensor:
    """Return the scale with which the values between -largest and largest become integers between -127 and 127."""
    return largest / LARGEST


def to_integers(
    values: Tensor, scale: Tensor | float, zero_point: int = 0, low: int = -LARGEST, high: int = LARGEST
) -> Tensor:
    """Return values / scale + zero_point, rounded half to even and clipped, in the data type of the values.

    NaN, such as 0 / 0 if all values and their scale are 0, is treated as the value 0.
    """
    return (values / scale).nan_to_num_(0.0).round_().add_(zero_point).clamp_(low, high)


def to_numbers(integers: Tensor, scale: Tensor | float, zero_point: int = 0) -> Tensor:
    """Return (integers - zero_point) * scale, in a floating-point type."""
    return (integers - zero_point) * scale if zero_point else integers * scale


def as_int8(
    values: Tensor, scale: Tensor | float, zero_point: int = 0, low: int = -LARGEST, high: int = LARGEST
) -> Tensor:
    """Return the result of `to_integers`, converted to int8."""
    return to_integers(values, scale, zero_point, low, high).to(torch.int8)
