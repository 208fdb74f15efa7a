"""Layers of a user's model, or of a run: convolutions in the order in which an input meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.data import Data, load_data
from paceline.data.base import Batch, Dataset
from paceline.dataflow.chips import Chip
from paceline.dataflow.integers import layers_of_integers
from paceline.dataflow.layers import PUBLISHED, Layer, linear_layer
from paceline.dataflow.shape import Shape
from paceline.dataflow.zeros import Seen, look_at, look_at_images, with_zeros
from paceline.errors import PacelineError, UsageError, unknown
from paceline.models import build_model, model_names
from paceline.plugins import is_reference
from paceline.recipe import Recipe
from paceline.runs import find

CLASSES = 10  # of a model that is only looked at
# Convolutions that no mapping covers: left out in silence, a network would look cheaper than it is.
UNKNOWN = (nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def read_layers(
    name: str, chip: Chip, *, num_images: int, input_shape: tuple[int, ...] | None, with_linear: bool, runs: Path
) -> list[Layer]:
    """The layers behind a name: a model (built in or `file.py:factory`), a stored run, or a run in integers."""
    if is_reference(name) or name in model_names():
        if input_shape is None:
            raise UsageError(f"what does {name!r} read? Give the shape of one input: --input-shape 3x32x32")
        model = build_model(name, Data(_Nothing(), _Nothing(), input_shape, CLASSES))
        return layers_of(model, torch.zeros(1, *input_shape), num_images=num_images, with_linear=with_linear)
    if input_shape is not None:
        raise UsageError(f"{name!r} has data of its own: --input-shape is for models")
    found = _stored(name, runs)
    read = layers_of_integers if found["kind"] == "study" else _layers_of_run
    return read(found, chip, num_images=num_images, with_linear=with_linear)


def _stored(name: str, runs: Path) -> dict[str, Any]:
    try:
        found = find(name, runs)
    except PacelineError:
        raise unknown("network, model or run", name, [*PUBLISHED, *model_names()]) from None
    if found["kind"] != "run" and found.get("study") != "quantize":
        raise UsageError(f"{name!r} is a study of several runs; name one of them, or a quantization")
    return found


def _layers_of_run(run: dict[str, Any], chip: Chip, *, num_images: int, with_linear: bool) -> list[Layer]:
    """A run's model with the weights it ended with, on images of its test set: zeros are counted, not assumed."""
    folder = Path(run["folder"])
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
        raise UsageError(f"run {folder.name!r} reads nested inputs; only a single tensor can be followed")
    found = layers_of(model, inputs, num_images=num_images, with_linear=with_linear)
    return with_zeros(found, _look(model, inputs, chip, with_linear=with_linear))


def layers_of(model: nn.Module, inputs: Tensor, *, num_images: int, with_linear: bool = False) -> list[Layer]:
    """Convolutions (and linear layers, as convolutions of one pixel) that an input really passes, in order."""
    found: list[Layer] = []

    def see(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        found.append(_layer(names[module] or type(module).__name__, module, given[0], num_images))

    names = {module: name for name, module in model.named_modules()}
    _forward(model, inputs, see, with_linear=with_linear)
    if not found:
        raise UsageError("this model has no convolution that its input passes; --linear counts linear layers as well")
    return found


def _look(model: nn.Module, inputs: Tensor, chip: Chip, *, with_linear: bool) -> list[Seen]:
    seen: list[Seen] = []

    def see(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Conv2d):
            kernel, stride = (_pair(sides) for sides in (module.kernel_size, module.stride))
            seen.append(look_at_images(given[0], chip, kernel=kernel, stride=stride, padding=_padding(module)))
        else:
            seen.append(look_at(given[0], chip))

    _forward(model, inputs, see, with_linear=with_linear)
    return seen


def _pair(sides: Any) -> tuple[int, int]:
    return int(sides[0]), int(sides[1])


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    """In numbers; `same` is them where it puts as much on both sides."""
    if not isinstance(module.padding, str):
        return _pair(module.padding)
    if module.padding == "valid":
        return 0, 0
    height, width = _pair(module.kernel_size)
    return (height - 1) // 2, (width - 1) // 2


def _forward(model: nn.Module, inputs: Tensor, see: Any, *, with_linear: bool) -> None:
    """One pass in evaluation mode; `see` hears of every layer's input."""
    kinds = (nn.Conv2d, *UNKNOWN, nn.Linear) if with_linear else (nn.Conv2d, *UNKNOWN)
    hooks = [module.register_forward_pre_hook(see) for module in model.modules() if isinstance(module, kinds)]
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


def _layer(name: str, module: nn.Module, given: Tensor, num_images: int) -> Layer:
    if isinstance(module, nn.Linear):
        return linear_layer(name, given.shape, num_images=num_images, num_filters=module.out_features)
    if isinstance(module, UNKNOWN):
        raise UsageError(
            f"layer {name} is a {type(module).__name__}; no mapping here covers other convolutions than Conv2d"
        )
    assert isinstance(module, nn.Conv2d)
    if module.padding_mode != "zeros":
        raise UsageError(f"layer {name} pads with {module.padding_mode!r}; only zeros are put around an input here")
    if set(module.dilation) != {1}:
        raise UsageError(f"layer {name} is dilated by {module.dilation}, which no mapping here covers")
    if module.padding == "same" and not all(side % 2 for side in module.kernel_size):
        raise UsageError(f"layer {name} has padding='same' for an even kernel: no mapping here pads one side more")
    shape = Shape(
        num_images=num_images,
        num_filters=module.out_channels // module.groups,
        num_channels=module.in_channels // module.groups,
        input_height=given.shape[-2],
        input_width=given.shape[-1],
        kernel_height=module.kernel_size[0],
        kernel_width=module.kernel_size[1],
        stride=(module.stride[0], module.stride[1]),
        padding=_padding(module),
    )
    return Layer(name=name, shape=shape, num_groups=module.groups)


class _Nothing(Dataset):
    def __len__(self) -> int:
        return 0

    def batch(self, indices: Tensor, epoch: int) -> Batch:  # noqa: ARG002
        raise AssertionError("a model is looked at without data")
