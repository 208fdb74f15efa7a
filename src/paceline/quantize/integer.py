"""Execute a quantized network in integers only: int8 tensors, int32 accumulators, fixed-point rescaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.quantize.fake_quant import computes_scores
from paceline.quantize.graph import OnTensor, op_names
from paceline.quantize.integer_ops import (
    HEADROOM,
    AddUp,
    Average,
    Clipped,
    Convolve,
    Flattened,
    Maximum,
    Multiply,
    Requantize,
    Rescale,
    Step,
    int_mm_is_exact,
)
from paceline.quantize.ops import Add, AveragePool, Clip, Conv, Flatten, Linear, LinearOp, MaxPool, Op, Relu
from paceline.quantize.quantized import Grid, Quantized

BATCH = 16  # images per run: the int32 sums of more images would not fit into the processor's caches


@dataclass(frozen=True, eq=False)
class IntegerNetwork:
    """A network that computes in integers. Only the input and the result of `scores` are floats."""

    input_grid: Grid
    steps: tuple[Step, ...]
    input: str
    output: str
    output_scale: float
    output_zero_point: int

    def run(self, integers: Tensor, on_tensor: OnTensor | None = None) -> Tensor:
        """Run the network on int8 images, with channels first, and return its output.

        The output is int8, or int32 if the last operation is a layer without ReLU. `on_tensor` is called before every
        step with the name and the first input tensor of the step; this tensor has channels last.
        """
        values = {self.input: integers.movedim(1, -1).contiguous() if integers.dim() == 4 else integers}
        for step in self.steps:
            if on_tensor is not None:
                on_tensor(step.name, values[step.inputs[0]])
            values[step.name] = step.run(*(values[name] for name in step.inputs))
        output = values[self.output]
        return output.movedim(-1, 1) if output.dim() == 4 else output

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores (logits) of a batch of images. Images and scores are floats."""
        integers = torch.cat([self.run(part) for part in self.input_grid.quantize(images).split(BATCH)])
        return (integers.to(torch.int32) - self.output_zero_point).to(torch.float32) * self.output_scale


def integer_network(model: Quantized) -> IntegerNetwork:
    """Build the executor of a quantized network; raise UsageError if an operation has no integer implementation."""
    graph = model.graph
    check_has_integer_form(model)
    int_mm_is_exact()  # cache the result before anything is timed
    steps = tuple(_BUILDERS[type(op)](model, op) for op in graph.ops)
    last = next((op for op in graph.ops if op.name == graph.output), None)
    if isinstance(last, LinearOp) and computes_scores(graph, last):
        scale, zero_point = float(_score_scale(model, last)), 0
    else:
        grid = model.grid(graph.output)
        scale, zero_point = grid.scale, grid.zero_point
    return IntegerNetwork(model.grid(graph.input), steps, graph.input, graph.output, scale, zero_point)


def check_has_integer_form(model: Quantized) -> None:
    """Raise UsageError if any operation of the network has no integer implementation."""
    floats = model.graph.left_in_float
    if floats:
        raise UsageError(f"these operations have no integer form: {op_names(floats)}")


def _sum_scales(model: Quantized, op: LinearOp) -> list[Fraction]:
    """Return the scale of each output channel's accumulator: input scale x weight scale."""
    input_scale = Fraction(model.grid(op.inputs[0]).scale)
    return [input_scale * Fraction(scale) for scale in model.weights[op.name].scales.tolist()]


def _score_scale(model: Quantized, op: LinearOp) -> Fraction:
    """Return the common scale of all scores: the largest scale of an output channel's accumulator.

    With this scale, rescaling never makes a sum larger, so that no score overflows. Channels whose weights and bias are
    all zero are ignored: their scale is arbitrary.
    """
    weights = model.weights[op.name]
    is_nonzero = weights.weight.flatten(1).any(1) | (weights.bias != 0)
    scales = _sum_scales(model, op)
    return max([scale for scale, counts in zip(scales, is_nonzero.tolist(), strict=True) if counts] or scales)


def _finish_layer(model: Quantized, op: LinearOp) -> Callable[[Tensor], Tensor]:
    if computes_scores(model.graph, op):
        widest = _score_scale(model, op)
        return Rescale([min(scale / widest, Fraction(1)) for scale in _sum_scales(model, op)])
    return _requantize(model.grid(op.name), _sum_scales(model, op), op.clip)


def _requantize(grid: Grid, scales: list[Fraction], clip: Clip | None = None) -> Requantize:
    low, high = _limits(grid, clip)
    rescale = Rescale([scale / Fraction(grid.scale) for scale in scales])
    return Requantize(rescale=rescale, zero_point=grid.zero_point, low=low, high=high)


def _limits(grid: Grid, clip: Clip | None) -> tuple[int, int]:
    """Return the lowest and the highest integer that a grid and a clipping (ReLU, ReLU6) allow."""
    if clip is None:
        return grid.low, grid.high
    high = grid.high if clip.most is None else int(grid.quantize(torch.tensor(clip.most)))
    return max(grid.low, grid.zero_point), high


def _bias_without_zero_point(model: Quantized, op: LinearOp) -> Tensor:
    """Return the bias of a layer, with the correction for the zero point of the layer's input.

    For input x, zero point z, weights w and bias b, the layer computes sum((x - z) w) + b. This is equal to
    sum(x w) + (b - z sum(w)), and the corrected bias is b - z sum(w).
    """
    weights = model.weights[op.name]
    sums = weights.weight.flatten(1).sum(1, dtype=torch.int32)
    return weights.bias - model.grid(op.inputs[0]).zero_point * sums


def _convolve(model: Quantized, op: Conv) -> Step:
    weight = model.weights[op.name].weight
    outputs, inputs, *kernel = weight.shape
    by_group = weight.view(op.groups, outputs // op.groups, inputs, *kernel)
    matrices = by_group.permute(0, 3, 4, 2, 1).reshape(op.groups, -1, outputs // op.groups).contiguous()
    return Convolve(
        name=op.name,
        inputs=op.inputs,
        weight=matrices,
        bias=_bias_without_zero_point(model, op),
        kernel=(kernel[0], kernel[1]),
        stride=op.stride,
        padding=op.padding,
        dilation=op.dilation,
        zero_point=model.grid(op.inputs[0]).zero_point,
        finish=_finish_layer(model, op),
    )


def _multiply(model: Quantized, op: Linear) -> Step:
    return Multiply(
        name=op.name,
        inputs=op.inputs,
        weight=model.weights[op.name].weight.t().contiguous(),
        bias=_bias_without_zero_point(model, op),
        finish=_finish_layer(model, op),
    )


def _add(model: Quantized, op: Add) -> Step:
    first, second = (model.grid(name) for name in op.inputs)
    common = 2 * max(Fraction(first.scale), Fraction(second.scale))
    return AddUp(
        name=op.name,
        inputs=op.inputs,
        zero_points=(first.zero_point, second.zero_point),
        rescales=(Rescale([Fraction(first.scale) / common]), Rescale([Fraction(second.scale) / common])),
        finish=_requantize(model.grid(op.name), [common / 2**HEADROOM], op.clip),
    )


def _average(model: Quantized, op: AveragePool) -> Step:
    grid = model.grid(op.inputs[0])
    return Average(
        name=op.name,
        inputs=op.inputs,
        kernel=op.kernel,
        stride=op.stride,
        padding=op.padding,
        zero_point=grid.zero_point,
        finish=_requantize(model.grid(op.name), [Fraction(grid.scale) / (op.kernel[0] * op.kernel[1])]),
    )


def _maximum(model: Quantized, op: MaxPool) -> Step:
    del model
    return Maximum(name=op.name, inputs=op.inputs, kernel=op.kernel, stride=op.stride, padding=op.padding)


def _clip(model: Quantized, op: Relu) -> Step:
    low, high = _limits(model.grid(op.name), op.clip)
    return Clipped(name=op.name, inputs=op.inputs, low=low, high=high)


def _flatten(model: Quantized, op: Flatten) -> Step:
    del model
    return Flattened(name=op.name, inputs=op.inputs)


_BUILDERS: dict[type[Op], Callable[[Quantized, Op], Step]] = {
    Conv: _convolve,  # type: ignore[dict-item]
    Linear: _multiply,  # type: ignore[dict-item]
    Add: _add,  # type: ignore[dict-item]
    AveragePool: _average,  # type: ignore[dict-item]
    MaxPool: _maximum,  # type: ignore[dict-item]
    Relu: _clip,  # type: ignore[dict-item]
    Flatten: _flatten,  # type: ignore[dict-item]
}
