"""The sizes of one convolution, checked before anything is simulated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from paceline.dataflow.axis import Axis
from paceline.errors import UsageError

_NUMBER = r"\d{1,9}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """N images of C channels, H x W pixels each, under M filters of C channels, R x S weights each."""

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
    def rows(self) -> Axis:
        return Axis(size=self.input_height, kernel=self.kernel_height, stride=self.stride[0], padding=self.padding[0])

    @cached_property
    def columns(self) -> Axis:
        return Axis(size=self.input_width, kernel=self.kernel_width, stride=self.stride[1], padding=self.padding[1])

    @property
    def padded_height(self) -> int:
        return self.rows.padded_size

    @property
    def padded_width(self) -> int:
        return self.columns.padded_size

    @property
    def output_height(self) -> int:
        """E in the papers."""
        return self.rows.outputs

    @property
    def output_width(self) -> int:
        """F in the papers."""
        return self.columns.outputs

    @property
    def row_reads(self) -> int:
        """Pixels of a row that a row of outputs reads, padding included."""
        return int(self.columns.read(self.output_width))

    @property
    def num_read_pixels(self) -> int:
        """Of all images and channels, without padding; a stride may pass over some that nobody reads."""
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
        """The first product of an output starts its sum; each further one is added."""
        return self.num_outputs * (self.weights_per_output - 1)


def parse_pair(text: str, option: str) -> tuple[int, int]:
    """`2` for both directions, `2x1` for down and across."""
    words = text.strip().lower().split("x")
    if len(words) in (1, 2) and all(re.fullmatch(rf"-?{_NUMBER}", word) for word in words):
        numbers = [int(word) for word in words]
        return numbers[0], numbers[-1]
    raise UsageError(f"{option} {text!r} is neither a whole number (of up to 9 digits) nor two of them such as 2x1")


def parse_array(text: str) -> tuple[int, int]:
    """`12x14`: rows and columns of PEs."""
    words = text.strip().lower().split("x")
    if len(words) != 2 or not all(re.fullmatch(_NUMBER, word) for word in words):
        raise UsageError(f"--pes {text!r} is not rows x columns (of up to 9 digits), such as 12x14")
    rows, columns = map(int, words)
    if rows < 1 or columns < 1:
        raise UsageError(f"--pes {text!r} is an array without PEs; give at least 1x1")
    return rows, columns


def _pair(values: tuple[int, int]) -> str:
    return str(values[0]) if values[0] == values[1] else f"{values[0]}x{values[1]}"
