"""Read the layers of a model, a stored run or a stored quantization, in the order of execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.data import Data, load_data
from paceline.data.base import Batch, Dataset
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import PUBLISHED, LayerShape, conv_layer, linear_layer
from paceline.dataflow.zeros import Seen, look_at, look_at_images, with_zeros
from paceline.errors import PacelineError, UsageError, unknown
from paceline.models import build_model, model_names
from paceline.plugins import is_reference, load_reference
from paceline.quantize.fx_trace import trace
from paceline.quantize.grid import stored_grid
from paceline.quantize.integer import integer_network
from paceline.quantize.ops import Conv, Linear
from paceline.quantize.quantized import INTEGERS_FILE, Quantized, restored
from paceline.recipe import Recipe
from paceline.results import Json
from paceline.results.quantize import Quantization
from paceline.runs import Stored, find


def layers_of_integers(stored: Stored, chip: Chip, *, num_images: int, with_linear: bool) -> list[LayerShape]:
    """Return the layers of a stored quantization, run in integers on images of its test set."""
    recipe = Recipe.from_dict(stored.recipe_values)
    data = load_data(recipe.replace({"data.augment": False}).data, seed=recipe.seed)
    images, _ = data.test.batch(torch.arange(min(num_images, len(data.test))), 0)
    model = _restored(stored, build_model(recipe.model.name, data), images)
    kinds = (Conv, Linear) if with_linear else (Conv,)
    # A BatchNorm that could not be folded is a convolution of the executor, but not of the model.
    ops = {op.name: op for op in model.graph.layers if isinstance(op, kinds) and op.module}
    if not ops:
        raise UsageError("this model has no convolution; --linear counts linear layers as well")
    layers: list[LayerShape] = []
    seen: list[Seen] = []

    def see(name: str, integers: Tensor) -> None:
        if name in ops:
            op = ops[name]
            # Subtract the zero point, which represents zero; the executor has channels last.
            values = integers.to(torch.int16) - model.grid(op.inputs[0]).zero_point
            values = values.movedim(-1, 1) if values.dim() == 4 else values
            layers.append(_integer_layer(op, values, num_images, len(images), model.weights[name].weight))
            seen.append(_look(op, values, chip))

    network = integer_network(model)
    network.run(network.input_grid.quantize(images), see)
    return with_zeros(layers, seen)


def _restored(stored: Stored, model: torch.nn.Module, images: Tensor) -> Quantized:
    """Rebuild the quantized network from the stored integers and the current code of the model."""
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


def _integer_layer(op: Conv | Linear, values: Tensor, num_images: int, num_tried: int, weight: Tensor) -> LayerShape:
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


CLASSES = 10  # of a model that is built only for its layer shapes
# Convolutions without a mapping are refused: ignoring them would underestimate the cost of a network.
UNKNOWN = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def read_layers(
    name: str, chip: Chip, *, num_images: int, input_shape: tuple[int, ...] | None, with_linear: bool, runs: Path
) -> tuple[str, list[LayerShape]]:
    """Return the title and the layers of a model (built-in or `file.py:factory`), a stored run or a quantization."""
    if is_reference(name) or name in model_names():
        if input_shape is None:
            if is_reference(name):
                load_reference(name, "model")  # report a missing model before a missing shape
            raise UsageError(f"the input shape of {name!r} is unknown; give --input-shape, such as 3x32x32 or 1x28x28")
        model = build_model(name, Data(_Nothing(), _Nothing(), input_shape, CLASSES))
        return name, layers_of(model, torch.zeros(1, *input_shape), num_images=num_images, with_linear=with_linear)
    if input_shape is not None:
        raise UsageError(f"{name!r} is stored with its data; --input-shape applies only to models")
    found = _stored(name, runs)
    kind, read_stored = ("quantization", layers_of_integers) if found.kind == "study" else ("run", _layers_of_run)
    layers = read_stored(found, chip, num_images=num_images, with_linear=with_linear)
    return f"{kind} {found.name}", layers


def _stored(name: str, runs: Path) -> Stored:
    try:
        found = find(name, runs)
    except PacelineError as error:
        if name == "last":
            raise
        nothing = unknown("network or model", name, [*PUBLISHED, *model_names()])
        raise UsageError(f"{nothing} (Nor is it a stored run: {error})") from None
    if found.kind != "run" and found.study != "quantize":
        raise UsageError(f"{name!r} is a study of several runs; name one of them, or a quantization")
    return found


def _layers_of_run(run: Stored, chip: Chip, *, num_images: int, with_linear: bool) -> list[LayerShape]:
    """Return the layers of a run's final model; zeros are counted on images of its test set."""
    folder = run.folder
    try:
        recipe = Recipe.from_toml((folder / "recipe.toml").read_text(encoding="utf-8"))
        weights = load_file(folder / "checkpoints" / "final.safetensors")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"run {folder.name!r} has no recipe or final weights to read: {error}") from None
    data = load_data(recipe.data, seed=recipe.seed)
    model = build_model(recipe.model.name, data)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"the weights of run {folder.name!r} are not those of {recipe.model.name} as its code is now: {reason}"
        ) from None
    inputs, _ = data.test.batch(torch.arange(min(num_images, len(data.test))), 0)
    if not isinstance(inputs, Tensor):
        raise UsageError(
            f"run {folder.name!r} has nested inputs; only models with a single input tensor can be analysed"
        )
    seen: list[Seen] = []

    def look(module: nn.Module, given: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            kernel, stride = (_pair(sides) for sides in (module.kernel_size, module.stride))
            seen.append(look_at_images(given, chip, kernel=kernel, stride=stride, padding=_padding(module)))
        else:
            seen.append(look_at(given, chip))

    found = layers_of(model, inputs, num_images=num_images, with_linear=with_linear, look=look)
    return with_zeros(found, seen)


def layers_of(
    model: nn.Module,
    inputs: Tensor,
    *,
    num_images: int,
    with_linear: bool = False,
    look: Callable[[nn.Module, Tensor], None] | None = None,
) -> list[LayerShape]:
    """Return the convolutions, and optionally linear layers as 1x1 convolutions, that the inputs pass, in order.

    `look` is called with every such module and its input, batch first.
    """
    found: list[LayerShape] = []
    names = {module: name for name, module in model.named_modules()}

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: Json) -> None:
        given: Tensor = args[0] if args else kwargs["input"]
        if isinstance(module, nn.Conv2d) and given.dim() == 3:
            given = given[None]
        found.append(_layer(names[module] or type(module).__name__, module, given, num_images, len(inputs)))
        if look is not None:
            look(module, given)

    kinds = (nn.Conv2d, *UNKNOWN, nn.Linear) if with_linear else (nn.Conv2d, *UNKNOWN)
    hooks = [
        module.register_forward_pre_hook(see, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, kinds)
    ]
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
    if not found:
        raise UsageError(
            "this model has no convolution that its input passes (those that it calls as functions are not seen); "
            "--linear counts linear layers as well"
        )
    return found


def _layer(name: str, module: nn.Module, given: Tensor, num_images: int, num_tried: int) -> LayerShape:
    """Describe a layer by `given`, its input for `num_tried` images."""
    if isinstance(module, nn.Linear):
        return linear_layer(
            name, given.shape, num_images=num_images, num_tried=num_tried, num_filters=module.out_features
        )
    if isinstance(module, UNKNOWN):
        raise UsageError(f"layer {name} is a {type(module).__name__}; only Conv2d convolutions can be mapped")
    assert isinstance(module, nn.Conv2d)
    if module.padding_mode != "zeros":
        raise UsageError(f"layer {name} pads with {module.padding_mode!r}; only zero padding can be mapped")
    if module.padding == "same" and not all(side % 2 for side in module.kernel_size):
        raise UsageError(f"layer {name} has padding='same' with an even kernel; only symmetric padding can be mapped")
    return conv_layer(
        name,
        given.shape,
        module.weight.shape,
        num_images=num_images,
        num_tried=num_tried,
        num_groups=module.groups,
        stride=_pair(module.stride),
        padding=_padding(module),
        dilation=_pair(module.dilation),
    )


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    """Return the padding in pixels; `same` must be symmetric."""
    if not isinstance(module.padding, str):
        return _pair(module.padding)
    if module.padding == "valid":
        return 0, 0
    height, width = _pair(module.kernel_size)
    return (height - 1) // 2, (width - 1) // 2


def _pair(sides: Any) -> tuple[int, int]:
    return int(sides[0]), int(sides[1])


class _Nothing(Dataset):
    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor, epoch: int) -> Batch:  # noqa: ARG002
        raise AssertionError("layer shapes are read without data")
