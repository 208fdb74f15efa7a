"""Integer-only operations on int8 tensors, channels last, with int32 accumulators and fixed-point rescaling.

No operation uses floats, and no integer is wider than int32. Rescaling multiplies an int32 tensor by a ratio,
represented by an integer multiplier and a shift, after Jacob et al. 2018 (arXiv:1712.05877). A multiplier has 30 bits
and is split into halves, so that every intermediate product fits into an int32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.errors import RunError
from paceline.quantize.ops import Pair

MULTIPLIER_BITS = 30
SMALLEST_SHIFT, LARGEST_SHIFT = 16, 61
HALF, LOW = 16, 15  # number of bits in the lower half of a sum, and of a multiplier
HEADROOM = 20  # extra bits of the two terms of an addition, which make their rounding negligible


def fixed_point(ratio: Fraction) -> tuple[int, int]:
    """Return (multiplier, shift), so that multiplier / 2^shift is as close to `ratio` as 30 bits allow.

    The multiplier has exactly 30 bits, or is 0 for a ratio below 2^-32, because the product of such a ratio and any
    int32 rounds to 0. Raises RunError for a ratio that is too large.
    """
    if ratio < Fraction(1, 2**32):
        return 0, LARGEST_SHIFT
    exponent = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    if ratio < Fraction(2) ** exponent:
        exponent -= 1
    shift = MULTIPLIER_BITS - 1 - exponent
    multiplier = round(ratio * 2**shift)
    if multiplier == 2**MULTIPLIER_BITS:
        multiplier, shift = multiplier // 2, shift - 1
    if shift < SMALLEST_SHIFT:
        raise RunError(
            f"rescaling by {float(ratio):.3g} is out of range: the calibrated range of an activation is far too small "
            "for its values; calibrate with other data or another method"
        )
    return multiplier, shift


class Rescale:
    """A function that multiplies int32 tensors by one ratio, or by one ratio per channel (the last dimension).

    The result is round(x * multiplier / 2^shift), where halves are rounded up.
    """

    def __init__(self, ratios: Sequence[Fraction]) -> None:
        pairs = [fixed_point(ratio) for ratio in ratios]
        self.multiplier = torch.tensor([multiplier for multiplier, _ in pairs], dtype=torch.int32)
        self.shift = torch.tensor([shift for _, shift in pairs], dtype=torch.int32)
        self._upper, self._lower = self.multiplier >> LOW, self.multiplier & (2**LOW - 1)
        rest = self.shift - LOW  # the product already lacks its LOW lowest bits, which do not affect rounding
        # A shift is called far if it drops the whole lower half of the product, so that only the upper half counts.
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
    """Return (high, low), where floor(x * multiplier / 2^15) = high * 2^16 + low.

    `upper` and `lower` are the halves of the multiplier. Every intermediate value fits into an int32.
    """
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Step(ABC):
    """One operation of an integer-only network. Its `name` is also the name of its output tensor."""

    name: str
    inputs: tuple[str, ...]

    @abstractmethod
    def run(self, *inputs: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Requantize:
    """A function that converts int32 sums to int8: rescale, add the zero point, clip."""

    rescale: Rescale
    zero_point: int
    low: int
    high: int

    def __call__(self, total: Tensor) -> Tensor:
        return self.rescale(total).add_(self.zero_point).clamp_(self.low, self.high).to(torch.int8)


@dataclass(frozen=True, eq=False, kw_only=True)
class Multiply(Step):
    """A linear layer, whose bias includes the correction for the zero point of the input."""

    weight: Tensor  # int8 (inputs, outputs)
    bias: Tensor  # int32
    finish: Callable[[Tensor], Tensor]  # converts sums to int8, or scores to int32 with one scale for all channels

    def run(self, *inputs: Tensor) -> Tensor:
        return self.finish(multiply(inputs[0], self.weight).add_(self.bias))


@dataclass(frozen=True, eq=False, kw_only=True)
class Convolve(Step):
    """A convolution, computed as one matrix product per group of channels, or by elementwise products if depthwise."""

    weight: Tensor  # int8 (groups, kernel height x kernel width x inputs of a group, outputs of a group)
    bias: Tensor
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    zero_point: int  # of the input; also the value of padding
    finish: Callable[[Tensor], Tensor]

    def run(self, *inputs: Tensor) -> Tensor:
        x = _padded(inputs[0], self.padding, self.zero_point)
        if self.is_channelwise:
            return self.finish(self._channelwise(x).add_(self.bias))
        windows = _windows(x, self.kernel, self.stride, self.dilation)
        groups = windows.chunk(len(self.weight), -1)
        parts = [multiply(w.reshape(-1, len(weight)), weight) for w, weight in zip(groups, self.weight, strict=True)]
        total = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return self.finish(total.add_(self.bias)).view(*windows.shape[:3], -1)

    @property
    def is_channelwise(self) -> bool:
        """Whether the convolution is depthwise, with one input and one output channel per group."""
        return len(self.weight) > 1 and self.weight.shape[1:] == (self.kernel[0] * self.kernel[1], 1)

    def _channelwise(self, x: Tensor) -> Tensor:
        slices = _slices(x, self.kernel, self.stride, self.dilation)
        weight = self.weight.squeeze(2).t().to(torch.int32)
        total = slices[0] * weight[0]
        for part, row in zip(slices[1:], weight[1:], strict=True):
            total += part * row
        return total


@dataclass(frozen=True, eq=False, kw_only=True)
class AddUp(Step):
    """An addition. Both inputs are rescaled to a common fine scale; their sum is rescaled to the output's scale."""

    zero_points: Pair
    rescales: tuple[Rescale, Rescale]
    finish: Callable[[Tensor], Tensor]

    def run(self, *inputs: Tensor) -> Tensor:
        first, second = (
            rescale((x.to(torch.int32) - zero_point) << HEADROOM)
            for x, zero_point, rescale in zip(inputs, self.zero_points, self.rescales, strict=True)
        )
        return self.finish(first.add_(second))


@dataclass(frozen=True, eq=False, kw_only=True)
class Average(Step):
    kernel: Pair
    stride: Pair
    padding: Pair
    zero_point: int
    finish: Callable[[Tensor], Tensor]

    def run(self, *inputs: Tensor) -> Tensor:
        x = _padded(inputs[0], self.padding, self.zero_point)
        if tuple(x.shape[1:3]) == self.kernel:
            total = x.sum((1, 2), keepdim=True, dtype=torch.int32)
        else:
            slices = _slices(x, self.kernel, self.stride, (1, 1))
            total = slices[0].to(torch.int32)
            for part in slices[1:]:
                total += part
        return self.finish(total.sub_(self.kernel[0] * self.kernel[1] * self.zero_point))


@dataclass(frozen=True, eq=False, kw_only=True)
class Maximum(Step):
    kernel: Pair
    stride: Pair
    padding: Pair

    def run(self, *inputs: Tensor) -> Tensor:
        slices = _slices(_padded(inputs[0], self.padding, -128), self.kernel, self.stride, (1, 1))
        largest = slices[0].contiguous()
        for part in slices[1:]:
            largest = torch.maximum(largest, part)
        return largest


@dataclass(frozen=True, eq=False, kw_only=True)
class Clipped(Step):
    low: int
    high: int

    def run(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(self.low, self.high)


@dataclass(frozen=True, eq=False, kw_only=True)
class Flattened(Step):
    """A step that flattens each sample in channels-first order, which the weights of the next layer expect."""

    def run(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        return x.movedim(-1, 1).flatten(1) if x.dim() == 4 else x.flatten(1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two int8 matrices into an int32 matrix."""
    if int_mm_is_exact():
        return torch._int_mm(_row_by_row(a), _row_by_row(b))
    return a.to(torch.int32) @ b.to(torch.int32)


def _row_by_row(matrix: Tensor) -> Tensor:
    """Return a matrix with row-major strides.

    `_int_mm` computes wrong results for other strides of a matrix with a single row or column.
    """
    return matrix.contiguous().as_strided(matrix.shape, (matrix.shape[1], 1))


@lru_cache(maxsize=1)
def int_mm_is_exact() -> bool:
    """Return whether `torch._int_mm` accumulates in 32 bits on this processor.

    Processors without a dot-product instruction for int8 add pairs of products in 16 bits, where the sum of two
    large products overflows.
    """
    for rows, inner, columns in ((1, 4, 1), (3, 64, 5), (64, 576, 64), (33, 100, 17)):
        for left in (-128, 127):
            for right in (-127, 127):
                a = torch.full((rows, inner), left, dtype=torch.int8)
                b = torch.full((inner, columns), right, dtype=torch.int8)
                if not bool((torch._int_mm(a, b) == left * right * inner).all()):
                    return False
    return True


def _padded(x: Tensor, padding: Pair, value: int) -> Tensor:
    if padding == (0, 0):
        return x
    return pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0]), value=value)


def _windows(x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> Tensor:
    """Return all kernel windows of the input, as a view.

    The axes of the view are samples, rows, columns, kernel rows, kernel columns, channels.
    """
    sample, row, column, channel = x.stride()
    height, width = (
        (side - step * (size - 1) - 1) // jump + 1
        for side, size, jump, step in zip(x.shape[1:3], kernel, stride, dilation, strict=True)
    )
    shape = (len(x), height, width, *kernel, x.shape[3])
    inside = (row * dilation[0], column * dilation[1])
    return x.as_strided(shape, (sample, row * stride[0], column * stride[1], *inside, channel))


def _slices(x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> list[Tensor]:
    """Return one view for each position in the kernel: the input values that are multiplied or pooled there."""
    windows = _windows(x, kernel, stride, dilation)
    return [windows[:, :, :, row, column] for row in range(kernel[0]) for column in range(kernel[1])]
