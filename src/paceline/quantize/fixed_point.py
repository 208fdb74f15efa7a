"""Fixed-point rescaling: multiply int32 tensors by a ratio with an integer multiplier and a shift.

After Jacob et al. 2018 (arXiv:1712.05877). A multiplier has 30 bits and is split into halves, so that every
intermediate product fits into an int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from paceline.errors import RunError

BITS = 30
SMALLEST_SHIFT, LARGEST_SHIFT = 16, 61
HALF, LOW = 16, 15  # bits of the lower half of a sum, and of a multiplier


def fixed_point(ratio: Fraction) -> tuple[int, int]:
    """Return the multiplier and the shift whose multiplier / 2^shift is nearest to a ratio.

    A multiplier has exactly 30 bits, or is 0 if every int32 times the ratio rounds to 0.
    """
    if ratio < Fraction(1, 2**32):
        return 0, LARGEST_SHIFT
    exponent = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    if ratio < Fraction(2) ** exponent:
        exponent -= 1
    shift = BITS - 1 - exponent
    multiplier = round(ratio * 2**shift)
    if multiplier == 2**BITS:
        multiplier, shift = multiplier // 2, shift - 1
    if shift < SMALLEST_SHIFT:
        raise RunError(
            f"rescaling by {float(ratio):.3g} is out of range: the calibrated range of an activation is far too small "
            "for its values; calibrate with other data or another method"
        )
    return multiplier, shift


class Rescale:
    """Computes round(x * multiplier / 2^shift) of int32 tensors, halves upwards; one ratio, or one per channel."""

    def __init__(self, ratios: Sequence[Fraction]) -> None:
        pairs = [fixed_point(ratio) for ratio in ratios]
        self.multiplier = torch.tensor([multiplier for multiplier, _ in pairs], dtype=torch.int32)
        self.shift = torch.tensor([shift for _, shift in pairs], dtype=torch.int32)
        self._upper, self._lower = self.multiplier >> LOW, self.multiplier & (2**LOW - 1)
        rest = self.shift - LOW  # the product already lacks its LOW lowest bits, which do not affect rounding
        self._is_far = (rest > HALF).to(torch.int32)
        self._num_far = int(self._is_far.sum())
        self._far = (rest - HALF).clamp(min=1)
        self._near = rest.clamp(max=HALF)
        self._left = (HALF - rest).clamp(min=0)
        self._far_half = torch.ones_like(rest) << (self._far - 1)
        self._near_half = torch.ones_like(rest) << (self._near - 1)

    def __call__(self, x: Tensor) -> Tensor:
        high, low = _product(x, self._upper, self._lower)
        if self._num_far == len(self._is_far):  # the common case
            return high.add_(self._far_half).bitwise_right_shift_(self._far)
        near = low.add_(self._near_half).bitwise_right_shift_(self._near)
        near += high << self._left
        if not self._num_far:
            return near
        far = high.add_(self._far_half).bitwise_right_shift_(self._far)
        return near.mul_(1 - self._is_far).add_(far.mul_(self._is_far))


def _product(x: Tensor, upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """Return floor(x * multiplier / 2^15) as high * 2^16 + low; every intermediate value fits into an int32."""
    above, below = x >> HALF, x & 0xFFFF
    middle = above * lower
    other = below * upper
    low = (below * lower) >> LOW
    low += (middle & 0x7FFF) << 1
    low += other & 0xFFFF
    high = above.mul_(upper)
    high += middle.bitwise_right_shift_(LOW)
    high += other.bitwise_right_shift_(HALF)
    high += low >> HALF
    return high, low.bitwise_and_(0xFFFF)
