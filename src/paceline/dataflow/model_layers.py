"""Read the layers of a model, a stored run or a quantized model, to compute accelerator costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.data import load_data
from paceline.data.base import data_without_samples
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import PUBLISHED, LayerShape, conv_layer, linear_layer
from paceline.dataflow.zeros import InputZeros, measure_conv_input, measure_linear_input, with_zeros
from paceline.errors import PacelineError, UsageError, unknown
from paceline.models import build_model, model_names
from paceline.plugins import is_reference, load_reference
from paceline.quantize.fx_trace import trace
from paceline.quantize.integer import integer_network
from paceline.quantize.ops import Conv, Linear
from paceline.quantize.quantized import INTEGERS_FILE, Quantized, restore, stored_grid
from paceline.recipe import Recipe
from paceline.results import Json
from paceline.results.quantize import Quantization
from paceline.runs import Stored, find
from paceline.trusted_code import check_trusted


def layers_of_integers(stored: Stored, chip: Chip, *, num_images: int, with_linear: bool) -> list[LayerShape]:
    """Run a stored quantized network in integers on images of its test set, and return its layers.

    The layers are in order of execution, with the shares of zeros that were counted in their inputs and weights.
    """
    recipe = Recipe.from_dict(stored.recipe_values)
    data = load_data(recipe.replace({"data.augment": False}).data, seed=recipe.seed)
    images, _ = data.test.batch(torch.arange(min(num_images, len(data.test))), 0)
    model = _restored(stored, build_model(recipe.model.name, data), images)
    kinds = (Conv, Linear) if with_linear else (Conv,)
    # Operations without `module` are BatchNorms that could not be folded, which the executor runs as convolutions.
    ops = {op.name: op for op in model.graph.layers if isinstance(op, kinds) and op.module}
    if not ops:
        raise UsageError("this model has no convolution; --linear counts linear layers as well")
    layers: list[LayerShape] = []
    zeros: list[InputZeros] = []

    def add_layer(name: str, integers: Tensor) -> None:
        if name in ops:
            op = ops[name]
            # Subtract the zero point, the integer that represents 0. The executor has channels last.
            values = integers.to(torch.int16) - model.grid(op.inputs[0]).zero_point
            values = values.movedim(-1, 1) if values.dim() == 4 else values
            layers.append(_integer_layer(op, values, num_images, len(images), model.weights[name].weight))
            zeros.append(_measure_input(op, values, chip))

    network = integer_network(model)
    network.run(network.input_grid.quantize(images), add_layer)
    return with_zeros(layers, zeros)


def _restored(stored: Stored, model: torch.nn.Module, images: Tensor) -> Quantized:
    """Rebuild the quantized network of a study: trace its model with one image, and load the integers and scales."""
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
    return restore(graph, grids, tensors)


def _measure_input(op: Conv | Linear, values: Tensor, chip: Chip) -> InputZeros:
    if isinstance(op, Linear):
        return measure_linear_input(values, chip)
    kernel = (int(op.weight.shape[2]), int(op.weight.shape[3]))
    return measure_conv_input(values, chip, kernel=kernel, stride=op.stride, padding=op.padding)


def _integer_layer(op: Conv | Linear, values: Tensor, num_images: int, num_tried: int, weight: Tensor) -> LayerShape:
    counts = {"num_images": num_images, "num_tried": num_tried}
    if isinstance(op, Linear):
        layer = linear_layer(op.module, values.shape, num_filters=len(weight), **counts)
    else:
        layer = conv_layer(
            op.module,
            values.shape,
            weight.shape,
            num_groups=op.groups,
            stride=op.stride,
            padding=op.padding,
            dilation=op.dilation,
            **counts,
        )
    return replace(layer, filter_zeros=float((weight == 0).double().mean()))


NUM_CLASSES = 10  # number of classes of a model that is built only for its layer shapes
# Convolutions without a mapping are refused: ignoring them would underestimate the cost of a network.
UNSUPPORTED = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def read_layers(
    name: str,
    chip: Chip,
    *,
    num_images: int,
    input_shape: tuple[int, ...] | None,
    with_linear: bool,
    runs: Path,
    trust: bool = False,
) -> tuple[str, list[LayerShape]]:
    """Return the title and the layers of a model, a stored run or a quantized model.

    The layers are in order of execution. `name` is the name of a built-in model, a reference `file.py:factory` to a
    user's model, the name of a stored run, or the name of a study that quantized a model. `input_shape` is the shape of
    one input. It is required for a model, and must be None for a run or a study. Code outside of the current folder
    that a stored run names is only executed with `trust`.
    """
    if is_reference(name) or name in model_names():
        if input_shape is None:
            if is_reference(name):
                load_reference(name, "model")  # report a missing model before a missing shape
            raise UsageError(f"the input shape of {name!r} is unknown; give --input-shape, such as 3x32x32 or 1x28x28")
        model = build_model(name, data_without_samples(input_shape, NUM_CLASSES))
        return name, layers_of(model, torch.zeros(1, *input_shape), num_images=num_images, with_linear=with_linear)
    if input_shape is not None:
        raise UsageError(
            f"{name!r} is a stored run or study, which has an input shape already; leave out --input-shape"
        )
    found = _find_stored(name, runs)
    if found.kind == "study":
        layers = layers_of_integers(found, chip, num_images=num_images, with_linear=with_linear)
        return f"quantization {found.name}", layers
    layers = _layers_of_run(found, chip, num_images=num_images, with_linear=with_linear, trust=trust)
    return f"run {found.name}", layers


def _find_stored(name: str, runs: Path) -> Stored:
    try:
        found = find(name, runs)
    except PacelineError as error:
        if name == "last":
            raise
        unknown_name = unknown("network or model", name, [*PUBLISHED, *model_names()])
        raise UsageError(f"{unknown_name} (Nor is it a stored run: {error})") from None
    if found.kind != "run" and found.study != "quantize":
        raise UsageError(f"{name!r} is a study of several runs; name one of them, or a quantization")
    return found


def _layers_of_run(run: Stored, chip: Chip, *, num_images: int, with_linear: bool, trust: bool) -> list[LayerShape]:
    """Return the layers of a run's final model, with the shares of zeros that were counted in their inputs.

    The zeros are counted while the model runs on images of the run's test set.
    """
    folder = run.folder
    try:
        recipe = Recipe.from_toml((folder / "recipe.toml").read_text(encoding="utf-8"))
        weights = load_file(folder / "checkpoints" / "final.safetensors")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"run {folder.name!r} has no recipe or final weights to read: {error}") from None
    check_trusted(recipe.to_dict(), f"run {folder.name!r}", folder=folder, trust=trust)
    data = load_data(recipe.data, seed=recipe.seed)
    model = build_model(recipe.model.name, data)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the weights of run {folder.name!r} do not fit model {recipe.model.name}, whose code has changed: {reason}"
        ) from None
    inputs, _ = data.test.batch(torch.arange(min(num_images, len(data.test))), 0)
    if not isinstance(inputs, Tensor):
        raise UsageError(
            f"run {folder.name!r} has nested inputs; only models with a single input tensor can be analysed"
        )
    zeros: list[InputZeros] = []

    def measure(module: nn.Module, values: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            kernel, stride = _pair(module.kernel_size), _pair(module.stride)
            zeros.append(measure_conv_input(values, chip, kernel=kernel, stride=stride, padding=_padding(module)))
        else:
            zeros.append(measure_linear_input(values, chip))

    layers = layers_of(model, inputs, num_images=num_images, with_linear=with_linear, on_input=measure)
    return with_zeros(layers, zeros)


def layers_of(
    model: nn.Module,
    inputs: Tensor,
    *,
    num_images: int,
    with_linear: bool = False,
    on_input: Callable[[nn.Module, Tensor], None] | None = None,
) -> list[LayerShape]:
    """Run a model on `inputs`, and return its convolutions in order of execution.

    `with_linear` adds the linear layers, as 1x1 convolutions. The layers are described for `num_images` images.
    `on_input` is called with the module and the input of each layer. The input of a convolution always has a batch
    dimension, even if the model calls the convolution without one.
    """
    layers: list[LayerShape] = []
    names = {module: name for name, module in model.named_modules()}

    def add_layer(module: nn.Module, args: tuple[Any, ...], kwargs: Json) -> None:
        values: Tensor = args[0] if args else kwargs["input"]
        if isinstance(module, nn.Conv2d) and values.dim() == 3:
            values = values[None]
        layers.append(_layer(names[module] or type(module).__name__, module, values, num_images, len(inputs)))
        if on_input is not None:
            on_input(module, values)

    kinds = (nn.Conv2d, *UNSUPPORTED, nn.Linear) if with_linear else (nn.Conv2d, *UNSUPPORTED)
    modules = [module for module in model.modules() if isinstance(module, kinds)]
    hooks = [module.register_forward_pre_hook(add_layer, with_kwargs=True) for module in modules]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            model(inputs)
    except PacelineError:
        raise
    except Exception as error:
        shape = "x".join(map(str, inputs.shape[1:]))
        raise UsageError(f"the model does not take inputs of {shape}: {str(error).partition(chr(10))[0]}") from error
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    if not layers:
        raise UsageError(
            "this model runs no convolution module (convolutions called as functions do not count); "
            "--linear counts linear layers as well"
        )
    return layers


def _layer(name: str, module: nn.Module, values: Tensor, num_images: int, num_tried: int) -> LayerShape:
    """Describe a module as a layer for `num_images` images.

    `values` is the module's input in a trial run with `num_tried` images.
    """
    counts = {"num_images": num_images, "num_tried": num_tried}
    if isinstance(module, nn.Linear):
        return linear_layer(name, values.shape, num_filters=module.out_features, **counts)
    if isinstance(module, UNSUPPORTED):
        raise UsageError(f"layer {name} is a {type(module).__name__}; only Conv2d convolutions can be mapped")
    assert isinstance(module, nn.Conv2d)
    if module.padding_mode != "zeros":
        raise UsageError(f"layer {name} pads with {module.padding_mode!r}; only zero padding can be mapped")
    if module.padding == "same" and not all(side % 2 for side in module.kernel_size):
        raise UsageError(f"layer {name} has padding='same' with an even kernel; only symmetric padding can be mapped")
    return conv_layer(
        name,
        values.shape,
        module.weight.shape,
        num_groups=module.groups,
        stride=_pair(module.stride),
        padding=_padding(module),
        dilation=_pair(module.dilation),
        **counts,
    )


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    """Return the padding of a convolution in pixels, vertical and horizontal.

    If the padding is "same", both sides of the kernel must be odd, so that opposite sides of the input are padded
    equally.
    """
    if not isinstance(module.padding, str):
        return _pair(module.padding)
    if module.padding == "valid":
        return 0, 0
    height, width = _pair(module.kernel_size)
    return (height - 1) // 2, (width - 1) // 2


def _pair(sides: Any) -> tuple[int, int]:
    return int(sides[0]), int(sides[1])
