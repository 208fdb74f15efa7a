"""Zeros in the actual inputs of layers: their share, the compressed size, and the products that they save."""

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
class Seen:
    """Statistics of a layer's input: share of zeros, compressed share, and share of products that are zero."""

    zeros: float
    share: float
    products: float


def look_at(values: Tensor, chip: Chip) -> Seen:
    """Measure the input of a linear layer."""
    zeros = float((values == 0).double().mean())
    return Seen(zeros, encoded_share(values.numpy(), chip), zeros)


def look_at_images(values: Tensor, chip: Chip, *, kernel: Pair, stride: Pair, padding: Pair) -> Seen:
    """Measure the input of a convolution, channels first; products with the zeros of its padding count too."""
    is_zero = (values == 0).double()
    down, across = padding
    padded = functional.pad(is_zero, (across, across, down, down), value=1.0)
    ones = torch.ones(1, padded.shape[1], *kernel, dtype=torch.float64)
    windows = functional.conv2d(padded, ones, stride=stride)
    return Seen(
        float(is_zero.mean()), encoded_share(values.contiguous().numpy(), chip), float(windows.mean()) / ones.numel()
    )


def with_zeros(layers: Sequence[LayerShape], seen: Sequence[Seen]) -> list[LayerShape]:
    """Set each layer's statistics; an output has the next layer's; the last one, its own input's."""
    return [
        replace(
            layer,
            input_zeros=own.zeros,
            output_zeros=following.zeros,
            input_share=own.share,
            output_share=following.share,
            zero_products=own.products,
        )
        for layer, own, following in zip(layers, seen, [*seen[1:], seen[-1]], strict=True)
    ]
