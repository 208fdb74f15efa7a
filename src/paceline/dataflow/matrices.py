"""Read the input and kernel of a convolution from command-line options, and check and pad them.

Options accept rows of numbers, nested JSON lists, random integers, or a file (.npy, .csv, .json).
"""

from __future__ import annotations

import csv
import json
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dataflow.shape import Shape
from paceline.errors import UsageError
from paceline.parsing import read_json

Matrix = NDArray[Any]  # int64 where every number is whole, else float64

SUFFIXES = (".npy", ".csv", ".json")
MAX_DIMENSIONS = 4
MAX_VALUES = 100_000_000  # limit per matrix: 800 MB
_RANDOM = re.compile(r"random:(\d{1,9}(?:x\d{1,9}){1,3})(?::(\d{1,18}))?")


def is_file_name(text: str) -> bool:
    return text.strip().lower().endswith(SUFFIXES)


def read_matrix(text: str, what: str) -> Matrix:
    """Return the matrix of 2, 3 or 4 dimensions that the value of a command-line option describes.

    `text` is rows such as `1 3 9; 4 5 6`, nested JSON lists, `random:3x8x8` (`random:3x8x8:7` for seed 7), or the name
    of a .npy, .csv or .json file. Other text raises UsageError. `what` is the name of the option for error messages.
    """
    stripped = text.strip()
    if not stripped:
        raise UsageError(f"{what} is empty; give rows such as '1 3 9; 4 5 6', or a file")
    if match := _RANDOM.fullmatch(stripped):
        return _random([int(side) for side in match[1].split("x")], int(match[2] or 0), what)
    if stripped.startswith("random:"):
        raise UsageError(
            f"{what} {stripped!r} is not random:SIZES with 2 to 4 sizes, such as 3x8x8, or 3x8x8:7 with seed 7"
        )
    if is_file_name(stripped):
        return _read_file(Path(stripped), what)
    if stripped.startswith("["):
        return _from_nested(read_json(stripped, what), what)
    if re.fullmatch(r"\S+\.[A-Za-z]\w*", stripped):
        raise UsageError(f"{what} {stripped!r} cannot be read; use a file that ends in {', '.join(SUFFIXES)}")
    lines = [line for line in re.split(r"[;\n]", stripped) if line.strip()]
    return _from_rows([re.split(r"\s*,\s*|\s+", line.strip()) for line in lines], what)


def _read_file(path: Path, what: str) -> Matrix:
    try:
        if not path.is_file():
            raise UsageError(f"{what}: there is no file {str(path)!r}")
        if path.suffix.lower() == ".npy":
            return _checked(_read_npy(path, what), what)
        content = path.read_text(encoding="utf-8-sig")
    except UsageError:
        raise
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise UsageError(f"{what}: {str(path)!r} cannot be read: {error}") from None
    if path.suffix.lower() == ".json":
        return _from_nested(read_json(content, what), what)
    try:
        rows = [row for row in csv.reader(content.splitlines()) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise UsageError(f"{what}: {str(path)!r} is not CSV: {error}") from None
    return _from_rows(rows, what)


def _read_npy(path: Path, what: str) -> Matrix:
    """Read a .npy file; raise UsageError if its content is not a readable array.

    numpy evaluates the header of the file as a Python literal, which can raise any exception.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore warnings of Python's parser about the header
            shape = np.lib.format.open_memmap(path, mode="r").shape  # refuses shapes larger than the file
            if math.prod(shape) <= MAX_VALUES:
                with path.open("rb") as file:  # np.load would also open archives of several arrays
                    matrix: Matrix = np.lib.format.read_array(file, allow_pickle=False)
                return matrix
    except OSError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{what}: {str(path)!r} is not an array that can be read: {reason}") from None
    raise UsageError(f"{what}: {str(path)!r} holds {math.prod(shape):,} values, but the limit is {MAX_VALUES:,}")


def _random(sides: list[int], seed: int, what: str) -> Matrix:
    """Return a matrix with the shape `sides` and random integers from -9 to 9, which are easy to check by hand.

    The generator depends on `seed` and the option's name `what`: two options with equal `seed` get different numbers.
    """
    if 0 in sides:
        raise UsageError(f"{what} has a side of length 0 in {'x'.join(map(str, sides))}")
    if math.prod(sides) > MAX_VALUES:
        raise UsageError(f"{what} asks for {math.prod(sides):,} values, but the limit is {MAX_VALUES:,}")
    return np.random.default_rng([seed, *what.encode()]).integers(-9, 10, size=sides, dtype=np.int64)


def _from_rows(rows: Sequence[Sequence[str]], what: str) -> Matrix:
    if not rows:
        raise UsageError(f"{what} has no rows")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise UsageError(
                f"{what} is ragged: row 1 has {_numbers(len(rows[0]))}, but row {number} has {_numbers(len(row))}"
            )
    numbers = [
        [_number(cell, f"{what}, row {row}, column {column}") for column, cell in enumerate(cells, start=1)]
        for row, cells in enumerate(rows, start=1)
    ]
    return _checked(np.array(numbers), what)


def _numbers(count: int) -> str:
    return f"{count} number{'' if count == 1 else 's'}"


def _number(cell: str, what: str) -> int | float:
    for kind in (int, float):
        try:
            number = kind(cell.replace("_", "?"))  # reject 1_0, which Python would read as 10
        except ValueError:
            continue
        return _within(number, what)
    raise UsageError(f"{what}: {repr(cell.strip()) if cell.strip() else 'an empty cell'} is not a number")


def _within(number: int | float, what: str) -> int | float:
    """Return the number; raise UsageError for an integer that does not fit into 64 bits."""
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise UsageError(f"{what} holds a whole number beyond 64 bits")
    return number


def _from_nested(value: Any, what: str) -> Matrix:
    """Convert nested lists to a matrix; raise UsageError if the lists do not form a matrix of numbers."""
    _check_nested(value, what, "")
    return _checked(np.array(value), what)


def _check_nested(value: Any, what: str, where: str) -> tuple[int, ...]:
    """Return the shape of nested lists; raise UsageError if they do not form a matrix of numbers.

    For error messages, `what` is the name of the option, and `where` is the index of `value` in the outermost list,
    such as `[0][2]`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        _within(value, what)
        return ()
    if not isinstance(value, list):
        raise UsageError(f"{what}{where}: {json.dumps(value)} is not a number")
    if not value:
        raise UsageError(f"{what}{where} is an empty list")
    if where.count("[") > MAX_DIMENSIONS:
        raise UsageError(f"{what} has more than {MAX_DIMENSIONS} dimensions; give {MAX_DIMENSIONS} at most")
    shapes = [_check_nested(item, what, f"{where}[{index}]") for index, item in enumerate(value)]
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise UsageError(f"{what} is ragged: {where}[0] and {where}[{index}] differ in size")
    return (len(value), *shapes[0])


def _checked(matrix: Matrix, what: str) -> Matrix:
    """Convert a matrix to int64 or float64.

    Raises UsageError if the matrix does not hold finite numbers of up to 64 bits, or does not have 2 to 4 dimensions.
    """
    if matrix.dtype.kind not in "iufb":
        raise UsageError(f"{what} holds {matrix.dtype}, not numbers that int64 or float64 can hold")
    if not 2 <= matrix.ndim <= MAX_DIMENSIONS:
        raise UsageError(f"{what} has {matrix.ndim} dimensions; give 2 (rows and columns), 3 (channels first) or 4")
    if 0 in matrix.shape:
        raise UsageError(f"{what} has a side of length 0: {' x '.join(map(str, matrix.shape))}")
    if matrix.dtype.kind == "f":
        if not np.isfinite(matrix).all():
            raise UsageError(f"{what} holds a value that is not finite")
        return matrix.astype(np.float64)
    if matrix.dtype.kind == "u" and matrix.max() > np.iinfo(np.int64).max:
        raise UsageError(f"{what} holds a whole number beyond 64 bits")
    return matrix.astype(np.int64)


def parse_sides(text: str) -> tuple[int, ...]:
    """Parse the value of --input-shape: `3x32x32` becomes (3, 32, 32)."""
    words = text.lower().split("x")
    sides = tuple(int(word) if re.fullmatch(r"\d{1,9}", word) else 0 for word in words)
    if 0 in sides or math.prod(sides) > MAX_VALUES:
        raise UsageError(f"--input-shape {text!r} is not sizes such as 3x32x32 (of {MAX_VALUES:,} values at most)")
    return sides


@dataclass(frozen=True, kw_only=True)
class Operands:
    """Padded images and filters of a convolution.

    The axes of `images` are (image, channel, row, column), and those of `filters` (filter, channel, row, column).
    If `has_batch` is true, the user expects the image axis in the output; if `has_filters` is true, the filter axis.
    """

    images: Matrix
    filters: Matrix
    shape: Shape
    has_batch: bool
    has_filters: bool

    def without_added_axes(self, output: Matrix) -> Matrix:
        """Remove the image axis and the filter axis from an output, each only if the user does not expect it."""
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
    """Return the images and filters of a convolution, with four axes each, and the images padded.

    The rows of a matrix with two axes are divided equally among the requested images or filters, and among their
    channels. A matrix with three axes gets a first axis of size 1. Raises UsageError if the matrices do not fit
    together.
    """
    has_batch = images.ndim == 4 or num_images is not None
    has_filters = has_batch or filters.ndim == 4 or num_filters is not None
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
        raise UsageError(f"the padded input has {padded:,} values, but the limit is {MAX_VALUES:,}")
    if images.dtype != filters.dtype:
        images, filters = images.astype(np.float64), filters.astype(np.float64)
    _check_range(images, filters, shape)
    borders = ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2)
    return Operands(
        images=np.pad(images, borders),
        filters=filters,
        shape=shape,
        has_batch=has_batch,
        has_filters=has_filters,
    )


def _with_axes(matrix: Matrix, option: str, first: tuple[str, int | None], second: tuple[str, int | None]) -> Matrix:
    """Return the matrix reshaped to four axes.

    `first` and `second` are the names of axes 0 and 1 of the result, each with its requested size or None. A matrix
    with two axes is cut along its rows into equal blocks, one for each index of axes 0 and 1 (None counts as size 1).
    A matrix with three axes gets an axis 0 of size 1. Raises UsageError if a requested size does not fit.
    """
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
    """Raise UsageError if a sum of products could overflow the type of the matrices."""
    largest = [max(abs(matrix.min().item()), abs(matrix.max().item())) for matrix in (images, filters)]
    bound = largest[0] * largest[1] * shape.weights_per_output
    if images.dtype.kind == "i" and bound >= 2**63:
        raise UsageError(
            "these whole numbers are too large to be added up in 64 bits; write them with a decimal point, "
            "to calculate in floating point"
        )
    if not math.isfinite(bound):
        raise UsageError(
            "these numbers are too large: a sum of their products could overflow a float; give smaller ones"
        )
