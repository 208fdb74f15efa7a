"""Sizes of a convolution (`Shape`), and the pixels read along each axis (`ConvAxis`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError

Amount = Any  # a number, or an array with one entry per candidate mapping


def ceiling(whole: Amount, part: Amount) -> Amount:
    """Return the number of parts of size `part` that cover `whole`: the quotient, rounded up."""
    return -(-whole // part)


def part_sizes(whole: int, most: int) -> list[int]:
    """Return the useful sizes of the parts that `whole` can be divided into, in ascending order.

    For each number of parts, the list has the smallest size with which that many parts cover `whole`. Sizes above
    `most` are left out. For a whole of 10, the sizes are 1, 2, 3, 4, 5 and 10.
    """
    sizes = []
    part = min(whole, most)
    while part:
        part = ceiling(whole, ceiling(whole, part))  # the smallest size that needs the same number of parts
        sizes.append(part)
        part -= 1
    return sizes[::-1]


@dataclass(frozen=True, kw_only=True)
class ConvAxis:
    """One axis of a convolution, vertical or horizontal, with all sizes in pixels.

    `size` is the size of the input without padding, and `padding` is added at both ends. Methods that count pixels in
    strips divide the outputs along the axis into strips of `part` outputs.
    """

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def padded_size(self) -> int:
        return self.size + 2 * self.padding

    @property
    def outputs(self) -> int:
        return (self.padded_size - self.kernel) // self.stride + 1

    @property
    def step(self) -> int:
        """Number of pixels that an output reads and the previous output does not.

        A stride larger than the kernel skips pixels, which no output reads.
        """
        return min(self.stride, self.kernel)

    def read(self, outputs: Amount) -> Amount:
        """Return the number of pixels that `outputs` neighbouring outputs read, padding included."""
        return (outputs - 1) * self.step + self.kernel

    def read_in_strips(self, part: Amount) -> Amount:
        """Return the number of pixels that strips of `part` outputs read, summed over all strips, padding included.

        A pixel that two strips read counts twice.
        """
        strips = ceiling(self.outputs, part)
        return (self.outputs - strips) * self.step + strips * self.kernel

    def real_in_strips(self, part: Amount) -> Amount:
        """Return the number of pixels that strips of `part` outputs read, summed over all strips, without padding.

        A pixel that two strips read counts twice.
        """
        return _for_each(self._real, part)

    @property
    def real(self) -> int:
        """Number of pixels that at least one output reads, without padding."""
        return self._real(self.outputs)

    def blocks_in_strips(self, block: Amount, part: Amount) -> Amount:
        """Return the total number of blocks that all strips read. A strip is a group of `part` outputs.

        The pixels that a strip reads, without padding, are divided into blocks of `block` pixels. The last block of a
        strip may be smaller.
        """
        return _for_each(self._blocks, block, part)

    def outputs_of_blocks(self, block: Amount, part: Amount) -> Amount:
        """Return the number of outputs that read a block of pixels, summed over all blocks.

        A strip has `part` outputs. The pixels that it reads are divided into blocks of `block` pixels, as in
        `blocks_in_strips`. For each block, only outputs of the block's own strip are counted.
        """
        return _for_each(self._outputs_of_blocks, block, part)

    def _real(self, part: int) -> int:
        return int(self._num_first_read(part).sum())

    def _blocks(self, block: int, part: int) -> int:
        pixels = np.add.reduceat(self._num_first_read(part), np.arange(0, self.outputs, part))
        return int(ceiling(pixels, block).sum())

    def _outputs_of_blocks(self, block: int, part: int) -> int:
        new = self._num_first_read(part)
        read = np.cumsum(new)
        begin = np.arange(self.outputs) // part * part
        end = read - (read - new)[begin]  # for each output, the end index of its pixels among the strip's pixels
        start = end - self._num_last_inside(self.kernel)
        return int(((end - 1) // block - start // block + 1)[end > start].sum())

    def _num_first_read(self, part: int) -> NDArray[np.int64]:
        """Return, for each output, the number of its pixels that earlier outputs of its strip do not read.

        A strip has `part` outputs. Padding is not counted.
        """
        new = self._num_last_inside(self.step)
        new[::part] = self._num_last_inside(self.kernel)[::part]
        return new

    def _num_last_inside(self, count: int) -> NDArray[np.int64]:
        """For each output, take the last `count` pixels that it reads, and return how many of them are not padding."""
        ends = np.arange(self.outputs, dtype=np.int64) * self.stride + self.kernel
        within = np.minimum(ends, self.padding + self.size) - np.maximum(ends - count, self.padding)
        return np.asarray(np.maximum(within, 0))


def _for_each(count: Callable[..., int], *sizes: Amount) -> Amount:
    """Apply `count` to the corresponding elements of the arrays `sizes`, and return the results as an array.

    Equal combinations of elements are computed only once.
    """
    alike = np.broadcast_arrays(*sizes)
    key = np.ravel_multi_index(alike, [int(one.max()) + 1 for one in alike])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    flat = [one.ravel() for one in alike]
    found = np.array([count(*(int(one[index]) for one in flat)) for index in first], dtype=np.int64)
    return found[which].reshape(alike[0].shape)


_NUMBER = r"\d{1,9}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a convolution, checked on construction.

    In the notation of the papers on the Eyeriss chip, N images have C channels of H x W pixels, and M filters have C
    channels of R x S weights.
    """

    num_images: int = 1
    num_filters: int = 1
    num_channels: int = 1
    input_height: int
    input_width: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        for name in ("num_images", "num_filters", "num_channels", "input_height", "input_width"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name.replace('_', ' ')} must be at least 1, not {getattr(self, name)}")
        if min(self.stride) < 1:
            raise UsageError(f"the stride must be at least 1, not {_pair(self.stride)}")
        if min(self.padding) < 0:
            raise UsageError(f"the padding must not be negative, but it is {_pair(self.padding)}")
        if min(self.kernel_height, self.kernel_width) < 1:
            raise UsageError(f"the kernel has no weights: {self.kernel_height} x {self.kernel_width}")
        if self.kernel_height > self.padded_height or self.kernel_width > self.padded_width:
            raise UsageError(
                f"the kernel ({self.kernel_height} x {self.kernel_width}) is larger than the padded input "
                f"({self.padded_height} x {self.padded_width}); give a smaller kernel or more padding"
            )

    @cached_property
    def rows(self) -> ConvAxis:
        return ConvAxis(
            size=self.input_height, kernel=self.kernel_height, stride=self.stride[0], padding=self.padding[0]
        )

    @cached_property
    def columns(self) -> ConvAxis:
        return ConvAxis(size=self.input_width, kernel=self.kernel_width, stride=self.stride[1], padding=self.padding[1])

    @property
    def padded_height(self) -> int:
        return self.rows.padded_size

    @property
    def padded_width(self) -> int:
        return self.columns.padded_size

    @property
    def output_height(self) -> int:
        """Number of rows of an output, called E in the papers on Eyeriss."""
        return self.rows.outputs

    @property
    def output_width(self) -> int:
        """Number of columns of an output, called F in the papers on Eyeriss."""
        return self.columns.outputs

    @property
    def row_reads(self) -> int:
        """Number of pixels of an input row that an output row reads, padding included."""
        return int(self.columns.read(self.output_width))

    @property
    def num_read_pixels(self) -> int:
        """Number of pixels, in all images and channels, that at least one output reads, without padding.

        A stride larger than the kernel skips some pixels, which are not counted.
        """
        return self.num_images * self.num_channels * self.rows.real * self.columns.real

    @property
    def num_outputs(self) -> int:
        return self.num_images * self.num_filters * self.output_height * self.output_width

    @property
    def weights_per_output(self) -> int:
        return self.num_channels * self.kernel_height * self.kernel_width

    @property
    def num_multiplications(self) -> int:
        return self.num_outputs * self.weights_per_output

    @property
    def num_additions(self) -> int:
        """Number of additions: one per product, except for the first product of each output."""
        return self.num_outputs * (self.weights_per_output - 1)


def parse_pair(text: str, option: str) -> tuple[int, int]:
    """Parse the value of a command-line option: `2` (for both directions) or `2x1` (vertical, then horizontal).

    `option` is the name of the option for the error message.
    """
    words = text.strip().lower().split("x")
    if len(words) in (1, 2) and all(re.fullmatch(rf"-?{_NUMBER}", word) for word in words):
        numbers = [int(word) for word in words]
        return numbers[0], numbers[-1]
    raise UsageError(f"{option} {text!r} is neither a whole number (of up to 9 digits) nor two of them such as 2x1")


def parse_array(text: str) -> tuple[int, int]:
    """Parse the size of an array of processing elements (PEs): `12x14` becomes (12, 14), rows and columns."""
    words = text.strip().lower().split("x")
    if len(words) != 2 or not all(re.fullmatch(_NUMBER, word) for word in words):
        raise UsageError(f"--pes {text!r} is not rows x columns (of up to 9 digits), such as 12x14")
    rows, columns = map(int, words)
    if rows < 1 or columns < 1:
        raise UsageError(f"--pes {text!r} is an array without PEs; give at least 1x1")
    return rows, columns


def _pair(values: tuple[int, int]) -> str:
    return str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"
