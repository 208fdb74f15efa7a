"""Numbers as small integers: the one scale and the one rounding, for what travels and for models."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127  # -128 is left out where 0 is in the middle, so that a number and its opposite are encoded alike


def symmetric_scale(largest: Tensor) -> Tensor:
    """What one integer step is worth where numbers of up to that size become -127 to 127."""
    return largest / LARGEST


def to_integers(
    values: Tensor, scale: Tensor | float, zero_point: int = 0, low: int = -LARGEST, high: int = LARGEST
) -> Tensor:
    """Numbers as integer steps away from `zero_point`, halves to the even neighbour, clipped to low and high.

    The integers are still in the number type of the values, so that whoever asks chooses theirs. What is no number,
    such as 0 / 0 where all numbers and their scale are 0, becomes 0.
    """
    return (values / scale).nan_to_num_(0.0).round_().add_(zero_point).clamp_(low, high)


def to_numbers(integers: Tensor, scale: Tensor | float, zero_point: int = 0) -> Tensor:
    """What integers stand for; they are given in a floating-point type."""
    return (integers - zero_point) * scale if zero_point else integers * scale


def as_int8(
    values: Tensor, scale: Tensor | float, zero_point: int = 0, low: int = -LARGEST, high: int = LARGEST
) -> Tensor:
    """As `to_integers`, in one byte each."""
    return to_integers(values, scale, zero_point, low, high).to(torch.int8)
