"""What is quantized: the model of a run, or of a checkpoint, with its weights and its data, all checked to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from paceline.data import Data, load_data
from paceline.errors import UsageError
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.results.quantize import Quantization
from paceline.runs import Stored, find

SUFFIX = ".safetensors"
FINAL = Path("checkpoints") / f"final{SUFFIX}"


@dataclass(frozen=True)
class Source:
    """Where weights are, and the recipe that says what they are of."""

    name: str
    recipe: Recipe
    checkpoint: Path


@dataclass(frozen=True, eq=False)
class Loaded:
    source: Source
    model: nn.Module  # in evaluation mode
    data: Data  # not augmented

    @property
    def recipe(self) -> Recipe:
        return self.source.recipe


def find_source(target: str, runs: Path, changes: Mapping[str, Any]) -> Source:
    """A run by name, folder or `last`, or a file of weights; `changes` are to the run's recipe."""
    path = Path(target)
    if path.suffix == SUFFIX or path.is_file():
        return _of_file(path, changes)
    stored = find(target, runs)
    if isinstance(stored.content, Quantization):
        stored = _quantized_run(stored, stored.content.source, runs)
    folder = stored.folder
    if stored.kind != "run":
        raise UsageError(f"{target!r} is a study of several runs; name one of them, in {str(folder / 'runs')!r}")
    checkpoint = folder / FINAL
    if not checkpoint.is_file():
        raise UsageError(f"run {folder.name!r} has no {FINAL}: it is {stored.status}")
    return Source(folder.name, _recipe_in(folder).replace(changes), checkpoint)


def _quantized_run(stored: Stored, source: str, runs: Path) -> Stored:
    """The run that was quantized: `last` after a quantization is that run again."""
    try:
        return find(source, runs)
    except UsageError:
        raise UsageError(
            f"{stored.name!r} is a quantization of {source!r}, which is not stored here; name a run or a checkpoint"
        ) from None


def _of_file(path: Path, changes: Mapping[str, Any]) -> Source:
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {str(path)!r}")
    folder = path.resolve().parent.parent
    if (folder / "recipe.toml").is_file() and path.resolve().parent.name == FINAL.parent.name:
        return Source(f"{folder.name}-{path.stem}", _recipe_in(folder).replace(changes), path)
    model = changes.get("model.name") or _metadata(path).get("model")
    if not model or not changes.get("data.name"):
        missing = " and ".join(
            word for word, known in (("--model", model), ("--data", "data.name" in changes)) if not known
        )
        raise UsageError(
            f"checkpoint {path.name!r} lies outside a run, so that nothing says what it is of: add {missing}"
        )
    return Source(path.stem, Recipe().replace({**changes, "model.name": model}), path)


def _recipe_in(folder: Path) -> Recipe:
    try:
        return Recipe.from_toml((folder / "recipe.toml").read_text(encoding="utf-8"), str(folder / "recipe.toml"))
    except OSError as error:
        raise UsageError(f"run {folder.name!r} has no recipe: {error.strerror}") from None


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UsageError(f"checkpoint {path.name!r} cannot be read: {error}") from None


def load_source(source: Source) -> Loaded:
    """The model with its weights; weights of another model, or that are no numbers, are refused."""
    recipe = source.recipe
    if recipe.train.batchnorm == "off":
        raise UsageError("the model was trained with --batchnorm off: without running statistics it cannot be folded")
    metadata = _metadata(source.checkpoint)
    data = load_data(recipe.replace({"data.augment": False}).data, seed=recipe.seed)
    if len(data.train) == 0:
        raise UsageError(f"data {recipe.data.name!r} has no training samples: the calibration set is empty")
    if len(data.test) == 0:
        raise UsageError(f"data {recipe.data.name!r} has no test samples")
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model.name, data)
    state = load_file(source.checkpoint)
    reason = _misfit(model, state)
    if reason:
        of = f", of model {metadata['model']!r}," if metadata.get("model") else ""
        raise UsageError(
            f"checkpoint {source.checkpoint.name!r}{of} does not fit model {recipe.model.name!r} on data "
            f"{recipe.data.name!r}: {reason}"
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"weights are not finite: {name!r} holds NaN or infinity; its training diverged")
    model.load_state_dict(state)
    return Loaded(source, model.float().eval(), data)


def _misfit(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """The first thing that does not fit; empty where all does."""
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in state:
            return f"it has no {name!r}"
        if state[name].shape != tensor.shape:
            return f"{name!r} is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
    extra = next((name for name in state if name not in expected), None)
    return f"the model has no {extra!r}" if extra else ""
