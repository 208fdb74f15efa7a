"""Scalar reference of a quantized network in Python integers; the executor must equal it bit for bit.

It shares no code with the executor: layouts, sums, multipliers and shifts are computed independently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.quantize.ops import Add, AveragePool, Conv, Flatten, Linear, MaxPool, Relu
from paceline.quantize.quantized import Quantized

Image = list[list[list[int]]]
Ratio = tuple[int, int]


def run_reference(model: Quantized, image: Any) -> Any:
    """Run one sample; input and output are nested lists (channels, rows, columns) or flat lists of ints."""
    values = {model.graph.input: image}
    for op in model.graph.ops:
        values[op.name] = _RUN[type(op)](model, op, *(values[name] for name in op.inputs))
    return values[model.graph.output]


def times(x: int, ratio: Ratio) -> int:
    """Multiply x by a ratio, as a multiplier of 30 bits and a shift; halves are rounded up."""
    numerator, denominator = ratio
    if numerator << 32 < denominator:
        return 0
    shift = 0
    while (numerator << shift) < (denominator << 29):
        shift += 1
    quotient, rest = divmod(numerator << shift, denominator)
    multiplier = quotient + (2 * rest > denominator or (2 * rest == denominator and quotient % 2))
    if multiplier == 1 << 30:
        multiplier, shift = 1 << 29, shift - 1
    return (x * multiplier + (1 << (shift - 1))) >> shift


def _over(*factors: float, by: float = 1.0) -> Ratio:
    """Return the product of `factors` divided by `by` as an exact ratio."""
    numerator, denominator = 1, 1
    for factor in factors:
        top, bottom = factor.as_integer_ratio()
        numerator, denominator = numerator * top, denominator * bottom
    top, bottom = by.as_integer_ratio()
    return numerator * bottom, denominator * top


def _clip(value: int, low: int, high: int) -> int:
    return low if value < low else high if value > high else value


def _finished(model: Quantized, op: Any, sums: list[tuple[int, int]]) -> list[int]:
    """Requantize a layer's sums, each given with its output channel."""
    scales = model.weights[op.name].scales.tolist()
    input_scale = model.grid(op.inputs[0]).scale
    used = any(op.name in other.inputs for other in model.graph.ops)
    if op.name == model.graph.output and op.clip is None and not used:
        return [_score(total, channel, model.weights[op.name]) for total, channel in sums]
    grid = model.grid(op.name)
    limits = _limits(grid, op.clip)
    return [
        _clip(times(total, _over(scales[channel], input_scale, by=grid.scale)) + grid.zero_point, *limits)
        for total, channel in sums
    ]


def _score(total: int, channel: int, weights: Any) -> int:
    """Rescale a sum of the last layer to the largest scale of all channels with a nonzero weight or bias."""
    rows, biases = weights.weight.flatten(1).tolist(), weights.bias.tolist()
    alive = [any(row) or bias != 0 for row, bias in zip(rows, biases, strict=True)]
    scales = weights.scales.tolist()
    known = [scale for scale, counts in zip(scales, alive, strict=True) if counts] or scales
    return times(total, _over(scales[channel], by=max(known))) if alive[channel] or not any(alive) else 0


def _limits(grid: Any, clip: Any) -> tuple[int, int]:
    """Return the range of a grid after clipping: from zero to the step nearest to the upper limit."""
    if clip is None:
        return grid.low, grid.high
    low, high = max(grid.low, grid.zero_point), grid.high
    if clip.most is not None:
        high = min(high, round(float(np.float32(clip.most) / np.float32(grid.scale))) + grid.zero_point)
    return low, high


def _conv(model: Quantized, op: Conv, x: Image) -> Image:
    weights, zero = model.weights[op.name], model.grid(op.inputs[0]).zero_point
    kernel, bias = weights.weight.tolist(), weights.bias.tolist()
    rows = (len(x[0]) + 2 * op.padding[0] - op.dilation[0] * (len(kernel[0][0]) - 1) - 1) // op.stride[0] + 1
    columns = (len(x[0][0]) + 2 * op.padding[1] - op.dilation[1] * (len(kernel[0][0][0]) - 1) - 1) // op.stride[1] + 1
    output = []
    for channel in range(len(kernel)):
        first = channel // (len(kernel) // op.groups) * len(kernel[0])
        plane = []
        for row in range(rows):
            sums = []
            for column in range(columns):
                total = bias[channel]
                for i in range(len(kernel[0])):
                    for dy in range(len(kernel[0][0])):
                        for dx in range(len(kernel[0][0][0])):
                            y = row * op.stride[0] + dy * op.dilation[0] - op.padding[0]
                            z = column * op.stride[1] + dx * op.dilation[1] - op.padding[1]
                            if 0 <= y < len(x[0]) and 0 <= z < len(x[0][0]):
                                total += (x[first + i][y][z] - zero) * kernel[channel][i][dy][dx]
                sums.append((total, channel))
            plane.append(_finished(model, op, sums))
        output.append(plane)
    return output


def _linear(model: Quantized, op: Linear, x: list[int]) -> list[int]:
    weights, zero = model.weights[op.name], model.grid(op.inputs[0]).zero_point
    matrix, bias = weights.weight.tolist(), weights.bias.tolist()
    sums = [
        (bias[channel] + sum((value - zero) * weight for value, weight in zip(x, row, strict=True)), channel)
        for channel, row in enumerate(matrix)
    ]
    return _finished(model, op, sums)


def _add(model: Quantized, op: Add, a: Any, b: Any) -> Any:
    if isinstance(a, list):
        return [_add(model, op, one, other) for one, other in zip(a, b, strict=True)]
    grids = [model.grid(name) for name in op.inputs]
    common = 2 * max(grid.scale for grid in grids)
    total = sum(
        times((value - grid.zero_point) << 20, _over(grid.scale, by=common))
        for value, grid in zip((a, b), grids, strict=True)
    )
    grid = model.grid(op.name)
    top, bottom = _over(common, by=grid.scale)
    return _clip(times(total, (top, bottom << 20)) + grid.zero_point, *_limits(grid, op.clip))


def _pooled(op: Any, x: Image, reduce: Callable[[list[int | None]], int]) -> Image:
    """Apply `reduce` to every window; None stands for padding."""

    def at(plane: list[list[int]], row: int, column: int) -> int | None:
        inside = 0 <= row < len(plane) and 0 <= column < len(plane[0])
        return plane[row][column] if inside else None

    (height, width), (down, right), (top, left) = op.kernel, op.stride, op.padding
    return [
        [
            [
                reduce(
                    [
                        at(plane, row * down + dy - top, column * right + dx - left)
                        for dy in range(height)
                        for dx in range(width)
                    ]
                )
                for column in range((len(plane[0]) + 2 * left - width) // right + 1)
            ]
            for row in range((len(plane) + 2 * top - height) // down + 1)
        ]
        for plane in x
    ]


def _max(model: Quantized, op: MaxPool, x: Image) -> Image:
    del model
    return _pooled(op, x, lambda window: max(value for value in window if value is not None))


def _average(model: Quantized, op: AveragePool, x: Image) -> Image:
    before, after = model.grid(op.inputs[0]), model.grid(op.name)
    top, bottom = _over(before.scale, by=after.scale)

    def mean(window: list[int | None]) -> int:
        total = sum(value - before.zero_point for value in window if value is not None)
        return _clip(times(total, (top, bottom * len(window))) + after.zero_point, after.low, after.high)

    return _pooled(op, x, mean)


def _relu(model: Quantized, op: Relu, x: Any) -> Any:
    if isinstance(x, list):
        return [_relu(model, op, value) for value in x]
    return _clip(x, *_limits(model.grid(op.name), op.clip))


def _flatten(model: Quantized, op: Flatten, x: Any) -> list[int]:
    del model, op
    return [value for plane in x for row in plane for value in row] if isinstance(x[0], list) else x


_RUN: dict[type, Callable[..., Any]] = {
    Conv: _conv,
    Linear: _linear,
    Add: _add,
    MaxPool: _max,
    AveragePool: _average,
    Relu: _relu,
    Flatten: _flatten,
}
