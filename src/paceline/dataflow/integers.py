"""Layers of a model that was quantized: its integer weights, and the integers that its layers really read."""

from __future__ import annotations

from dataclasses import replace

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from paceline.data import load_data
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import Layer, conv_layer, linear_layer
from paceline.dataflow.zeros import Seen, look_at, look_at_images, with_zeros
from paceline.errors import UsageError
from paceline.models import build_model
from paceline.quantize.grid import stored_grid
from paceline.quantize.integer import integer_network
from paceline.quantize.ops import Conv, Linear
from paceline.quantize.quantized import INTEGERS_FILE, Quantized, restored
from paceline.quantize.trace import trace
from paceline.recipe import Recipe
from paceline.results.quantize import Quantization
from paceline.runs import Stored


def layers_of_integers(stored: Stored, chip: Chip, *, num_images: int, with_linear: bool) -> list[Layer]:
    """The model of a stored quantization on images of its test set, in integers alone."""
    recipe = Recipe.from_dict(stored.recipe_values)
    data = load_data(recipe.replace({"data.augment": False}).data, seed=recipe.seed)
    images, _ = data.test.batch(torch.arange(min(num_images, len(data.test))), 0)
    model = _restored(stored, build_model(recipe.model.name, data), images)
    kinds = (Conv, Linear) if with_linear else (Conv,)
    # A BatchNorm that stands alone is a convolution to the executor, but none of the model's.
    ops = {op.name: op for op in model.graph.layers if isinstance(op, kinds) and op.module}
    if not ops:
        raise UsageError("this model has no convolution; --linear counts linear layers as well")
    layers: list[Layer] = []
    seen: list[Seen] = []

    def see(name: str, integers: Tensor) -> None:
        if name in ops:
            op = ops[name]
            # On their grid zero is the zero point; channels last, as the executor has them.
            values = integers.to(torch.int16) - model.grid(op.inputs[0]).zero_point
            values = values.movedim(-1, 1) if values.dim() == 4 else values
            layers.append(_layer(op, values, num_images, len(images), model.weights[name].weight))
            seen.append(_look(op, values, chip))

    network = integer_network(model)
    network.run(network.input_grid.quantize(images), see)
    return with_zeros(layers, seen)


def _restored(stored: Stored, model: torch.nn.Module, images: Tensor) -> Quantized:
    """The integers that the study stored, in the network that the model's code still describes."""
    study = stored.content
    assert isinstance(study, Quantization)
    file = stored.folder / INTEGERS_FILE
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"study {stored.name!r} has no {INTEGERS_FILE} to read: {error}") from None
    graph = trace(model.float().eval(), images[:1])
    grids = {
        row.tensor: stored_grid(row.scale, row.zero_point, symmetric=study.request.symmetric)
        for row in study.activations
    }
    return restored(graph, grids, tensors)


def _look(op: Conv | Linear, values: Tensor, chip: Chip) -> Seen:
    if isinstance(op, Linear):
        return look_at(values, chip)
    kernel = (int(op.weight.shape[2]), int(op.weight.shape[3]))
    return look_at_images(values, chip, kernel=kernel, stride=op.stride, padding=op.padding)


def _layer(op: Conv | Linear, values: Tensor, num_images: int, num_tried: int, weight: Tensor) -> Layer:
    if isinstance(op, Linear):
        layer = linear_layer(
            op.module, values.shape, num_images=num_images, num_tried=num_tried, num_filters=len(weight)
        )
    else:
        layer = conv_layer(
            op.module,
            values.shape,
            weight.shape,
            num_images=num_images,
            num_tried=num_tried,
            num_groups=op.groups,
            stride=op.stride,
            padding=op.padding,
            dilation=op.dilation,
        )
    return replace(layer, filter_zeros=float((weight == 0).double().mean()))
