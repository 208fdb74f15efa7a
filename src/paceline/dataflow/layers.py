"""Describe the layers of a network, such as AlexNet and VGG-16, for the accelerator's cost model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.dataflow.shape import Shape
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Sizes of a convolution or linear layer, and the shares of zeros in its input, output and weights.

    The layer's groups of channels are computed one after another; `shape` describes one group.
    """

    name: str
    shape: Shape
    num_groups: int = 1
    input_zeros: float = 0.0  # share of zeros in its input, 0 to 1
    output_zeros: float = 0.0  # share of zeros in its output, after the activation
    # The next three are measured on actual values. A field that is None is estimated from the shares of zeros.
    input_share: float | None = None  # compressed size of the input over its uncompressed size
    output_share: float | None = None  # compressed size of the output over its uncompressed size
    zero_products: float | None = None  # share of products whose input is zero, padding included
    filter_zeros: float | None = None  # share of zeros in its integer weights; None without integer weights

    @property
    def num_macs(self) -> int:
        return self.shape.num_multiplications * self.num_groups


def conv_layer(
    name: str,
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    *,
    num_images: int,
    num_tried: int,
    num_groups: int = 1,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> LayerShape:
    """Describe a convolution of `num_images` images as a `LayerShape`.

    `weight_shape` is the shape of the layer's weight. `input_shape` is the shape of the layer's input in a trial run
    with `num_tried` images.
    """
    if dilation != (1, 1):
        raise UsageError(f"layer {name} has dilation {dilation}; only convolutions without dilation can be mapped")
    count = _scaled(name, input_shape[0], num_images, num_tried)
    try:
        shape = Shape(
            num_images=count,
            num_filters=weight_shape[0] // num_groups,
            num_channels=weight_shape[1],
            input_height=input_shape[2],
            input_width=input_shape[3],
            kernel_height=weight_shape[2],
            kernel_width=weight_shape[3],
            stride=stride,
            padding=padding,
        )
    except UsageError as error:
        raise UsageError(f"layer {name}: {error}") from None
    return LayerShape(name=name, shape=shape, num_groups=num_groups)


def linear_layer(
    name: str, input_shape: Sequence[int], *, num_images: int, num_tried: int, num_filters: int
) -> LayerShape:
    """Describe a linear layer with `num_filters` outputs as a 1x1 convolution, whose images are the input vectors.

    `input_shape` is the shape of the layer's input in a trial run with `num_tried` images. The result is for
    `num_images` images.
    """
    shape = Shape(
        num_images=_scaled(name, math.prod(input_shape[:-1]), num_images, num_tried),
        num_filters=num_filters,
        num_channels=input_shape[-1],
        input_height=1,
        input_width=1,
        kernel_height=1,
        kernel_width=1,
    )
    return LayerShape(name=name, shape=shape)


def _scaled(name: str, num_inputs: int, num_images: int, num_tried: int) -> int:
    """Return how many inputs a layer has for `num_images` images, if it has `num_inputs` for `num_tried` images.

    A layer can have more inputs than the network has images: a model may, for example, split an image into patches.
    """
    count, rest = divmod(num_inputs * num_images, num_tried)
    if rest or not count:
        raise UsageError(
            f"layer {name} reads {num_inputs} inputs for {num_tried} images, which is not a whole number per image"
        )
    return count


def with_unique_names(layers: Sequence[LayerShape]) -> list[LayerShape]:
    """Return layers with unique names: three layers `conv` become conv, conv (2), conv (3)."""
    unique: dict[str, LayerShape] = {}
    for layer in layers:
        names = itertools.chain([layer.name], (f"{layer.name} ({number})" for number in itertools.count(2)))
        name = next(name for name in names if name not in unique)
        unique[name] = replace(layer, name=name)
    return list(unique.values())


def alexnet(num_images: int) -> list[LayerShape]:
    """Return the five convolutions of AlexNet on images of 227 x 227, with the shares of zeros in inputs and outputs.

    The shares were measured on the Eyeriss chip. The output of a layer gets the same share of zeros as the next layer's
    input, even if pooling lies between them. No share is published for the output of the last layer, so it gets the
    share of that layer's input.
    """
    zeros = (0.0001, 0.387, 0.725, 0.793, 0.776)
    sizes = (  # groups, filters and channels per group, input side, kernel side, stride, padding
        (1, 96, 3, 227, 11, 4, 0),
        (2, 128, 48, 27, 5, 1, 2),
        (1, 384, 256, 13, 3, 1, 1),
        (2, 192, 192, 13, 3, 1, 1),
        (2, 128, 192, 13, 3, 1, 1),
    )
    return [
        _square(f"CONV{number + 1}", num_images, size, zeros[number], zeros[min(number + 1, 4)])
        for number, size in enumerate(sizes)
    ]


def vgg16(num_images: int) -> list[LayerShape]:
    """Return the thirteen convolutions of VGG-16 on images of 224 x 224, assuming no zeros in inputs and outputs."""
    layers = []
    channels, side = 3, 224
    for group, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for number in range(1, depth + 1):
            layers.append(_square(f"CONV{group}-{number}", num_images, (1, width, channels, side, 3, 1, 1), 0.0, 0.0))
            channels = width
        side //= 2
    return layers


PUBLISHED = {"alexnet": alexnet, "vgg16": vgg16}


def _square(name: str, num_images: int, size: tuple[int, ...], zeros_in: float, zeros_out: float) -> LayerShape:
    groups, filters, channels, side, kernel, stride, padding = size
    shape = Shape(
        num_images=num_images,
        num_filters=filters,
        num_channels=channels,
        input_height=side,
        input_width=side,
        kernel_height=kernel,
        kernel_width=kernel,
        stride=(stride, stride),
        padding=(padding, padding),
    )
    return LayerShape(name=name, shape=shape, num_groups=groups, input_zeros=zeros_in, output_zeros=zeros_out)
