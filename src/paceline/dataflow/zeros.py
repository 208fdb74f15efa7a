"""Measure the zeros in layers' inputs, the inputs' compressed size, and the share of products whose input is zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from paceline.dataflow.accesses import encoded_share
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import LayerShape

Pair = tuple[int, int]


@dataclass(frozen=True)
class InputZeros:
    """Share of zeros in a layer's input, the input's compressed size, and the share of products whose input is zero."""

    zeros: float  # share of zeros in the input, from 0 to 1
    compressed: float  # compressed size of the input over its uncompressed size
    zero_products: float  # share of the layer's products whose input is zero


def measure_linear_input(values: Tensor, chip: Chip) -> InputZeros:
    """Measure the zeros in `values`, the input of a linear layer."""
    zeros = float((values == 0).double().mean())
    return InputZeros(zeros, encoded_share(values.numpy(), chip), zeros)


def measure_conv_input(values: Tensor, chip: Chip, *, kernel: Pair, stride: Pair, padding: Pair) -> InputZeros:
    """Measure the zeros in `values`, the input of a convolution.

    The shape of `values` is (samples, channels, height, width). Products with padding also count as products whose
    input is zero.
    """
    is_zero = (values == 0).double()
    down, across = padding
    padded = functional.pad(is_zero, (across, across, down, down), value=1.0)
    ones = torch.ones(1, padded.shape[1], *kernel, dtype=torch.float64)
    windows = functional.conv2d(padded, ones, stride=stride)
    compressed = encoded_share(values.contiguous().numpy(), chip)
    return InputZeros(float(is_zero.mean()), compressed, float(windows.mean()) / ones.numel())


def with_zeros(layers: Sequence[LayerShape], measured: Sequence[InputZeros]) -> list[LayerShape]:
    """Return copies of the layers with the zeros and compressed sizes of their inputs and outputs.

    `measured` has one measurement per layer: that of its input. A layer's output gets the measurement of the next
    layer's input. The last layer's output gets the measurement of the last layer's own input.
    """
    return [
        replace(
            layer,
            input_zeros=own.zeros,
            output_zeros=following.zeros,
            input_share=own.compressed,
            output_share=following.compressed,
            zero_products=own.zero_products,
        )
        for layer, own, following in zip(layers, measured, [*measured[1:], measured[-1]], strict=True)
    ]
