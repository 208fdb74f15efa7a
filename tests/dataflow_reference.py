"""Reference for the simulated array: a convolution written from its definition, and random inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from paceline.dataflow.matrices import Operands, make_operands
from paceline.dataflow.shape import ConvAxis, Shape
from paceline.dataflow.timing import MODELS, Timing


def convolve(images: Any, filters: Any, *, stride: tuple[int, int], padding: tuple[int, int]) -> Any:
    """Compute every output as one sum over its window, without code of the package."""
    padded = np.pad(images, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    height, width = filters.shape[2:]
    rows = (padded.shape[2] - height) // stride[0] + 1
    columns = (padded.shape[3] - width) // stride[1] + 1
    output = np.zeros((len(images), len(filters), rows, columns), dtype=padded.dtype)
    for n, m, y, x in np.ndindex(output.shape):
        top, left = y * stride[0], x * stride[1]
        output[n, m, y, x] = (padded[n, :, top : top + height, left : left + width] * filters[m]).sum()
    return output


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, Any, Operands]:
    """Draw images, filters and the operands made of them, with any stride, padding, channels, filters and batch."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    least = [max(1, side - 2 * pad) for side, pad in zip(kernel, padding, strict=True)]
    sides = [draw(st.integers(small, small + 6)) for small in least]
    num_images, num_channels, num_filters = (draw(st.integers(1, 3)) for _ in range(3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images = random.integers(-99, 100, size=(num_images, num_channels, *sides))
    filters = random.integers(-99, 100, size=(num_filters, num_channels, *kernel))
    return images, filters, make_operands(images, filters, stride=stride, padding=padding)


def arrays() -> st.SearchStrategy[tuple[int, int] | None]:
    """Draw array sizes from one PE to more than any PE set needs; None: the size of the PE set."""
    return st.none() | st.tuples(st.integers(1, 11), st.integers(1, 14))


def timings() -> st.SearchStrategy[Timing]:
    cycles = st.integers(1, 4)
    return st.builds(Timing, model=st.sampled_from(list(MODELS)), multiply_cycles=cycles, add_cycles=cycles)


@st.composite
def axes(draw: st.DrawFn) -> ConvAxis:
    """Draw an axis with any stride and padding, including ones larger than the kernel."""
    kernel, padding = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    size = draw(st.integers(max(1, kernel - 2 * padding), 10))
    return ConvAxis(size=size, kernel=kernel, stride=draw(st.integers(1, 5)), padding=padding)


def shaped(rows: ConvAxis, columns: ConvAxis, **counts: int) -> Shape:
    return Shape(
        **counts,
        input_height=rows.size,
        input_width=columns.size,
        kernel_height=rows.kernel,
        kernel_width=columns.kernel,
        stride=(rows.stride, columns.stride),
        padding=(rows.padding, columns.padding),
    )
