"""From two matrices to what a convolution needs: images and filters with their axes, and the shape they make."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paceline.dataflow.matrices import MAX_VALUES, Matrix
from paceline.dataflow.shape import Shape
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Images (N, C, H, W, padded), filters (M, C, R, S), and which axes the result shows."""

    images: Matrix
    filters: Matrix
    shape: Shape
    has_batch: bool
    has_filters: bool

    def shown(self, output: Matrix) -> Matrix:
        """An output (N, M, E, F) without the axes that the request did not speak of."""
        without_batch = output if self.has_batch else output[0]
        return without_batch if self.has_filters else without_batch[..., 0, :, :]


def make_operands(
    images: Matrix,
    filters: Matrix,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    num_channels: int | None = None,
    num_filters: int | None = None,
    num_images: int | None = None,
) -> Operands:
    """Bring both to four axes. A plain matrix is cut into channels, filters and images along its rows where asked."""
    given_batch = images.ndim == 4 or num_images is not None
    given_filters = filters.ndim == 4 or num_filters is not None
    images = _with_axes(images, "--input", ("batch", num_images), ("channels", num_channels))
    filters = _with_axes(filters, "--kernel", ("filters", num_filters), ("channels", num_channels))
    if images.shape[1] != filters.shape[1]:
        raise UsageError(f"the input has {images.shape[1]} channels, but the kernel has {filters.shape[1]}")
    shape = Shape(
        num_images=images.shape[0],
        num_filters=filters.shape[0],
        num_channels=images.shape[1],
        input_height=images.shape[2],
        input_width=images.shape[3],
        kernel_height=filters.shape[2],
        kernel_width=filters.shape[3],
        stride=stride,
        padding=padding,
    )
    padded = images.shape[0] * images.shape[1] * shape.padded_height * shape.padded_width
    if padded > MAX_VALUES:
        raise UsageError(f"with its padding the input has {padded:,} values, and {MAX_VALUES:,} are the most")
    if images.dtype != filters.dtype:
        images, filters = images.astype(np.float64), filters.astype(np.float64)
    _check_range(images, filters, shape)
    borders = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    return Operands(
        images=np.pad(images, borders),
        filters=filters,
        shape=shape,
        has_batch=given_batch,
        has_filters=given_filters or given_batch,
    )


def _with_axes(matrix: Matrix, option: str, first: tuple[str, int | None], second: tuple[str, int | None]) -> Matrix:
    """Four axes; each count that was asked for must be the array's own, or divide the rows of a plain matrix."""
    for name, count in (first, second):
        if count is not None and count < 1:
            raise UsageError(f"--{name} must be at least 1, not {count}")
    if matrix.ndim == 2:
        outer, inner = first[1] or 1, second[1] or 1
        if matrix.shape[0] % (outer * inner):
            raise UsageError(
                f"{option} has {matrix.shape[0]} rows, which cannot be cut into {outer} x {inner} "
                f"({first[0]} x {second[0]}) equal parts"
            )
        return matrix.reshape(outer, inner, -1, matrix.shape[1])
    whole = matrix[None] if matrix.ndim == 3 else matrix
    for axis, (name, count) in enumerate((first, second)):
        if count is not None and count != whole.shape[axis]:
            raise UsageError(f"--{name} {count} conflicts with {option}, which has {whole.shape[axis]}")
    return whole


def _check_range(images: Matrix, filters: Matrix, shape: Shape) -> None:
    """A sum that could pass what its type can hold would be wrong without a word, or no number at all."""
    largest = [max(abs(matrix.min().item()), abs(matrix.max().item())) for matrix in (images, filters)]
    bound = largest[0] * largest[1] * shape.weights_per_output
    if images.dtype.kind == "i" and bound >= 2**63:
        raise UsageError(
            "these whole numbers are too large to be added up in 64 bits; write them with a decimal point, "
            "to calculate in floating point"
        )
    if not math.isfinite(bound):
        raise UsageError("these numbers are too large: a sum of their products could pass what a float can hold")
