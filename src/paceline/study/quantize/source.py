"""Input of a quantization: its options, and the trained model and data of a run or checkpoint."""

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
from paceline.parsing import words_in
from paceline.plugins import is_reference
from paceline.quantize.calibration import METHODS, Calibration
from paceline.quantize.onnx_model import missing_packages
from paceline.recipe import Recipe
from paceline.results.quantize import Quantization, QuantizeRequest
from paceline.runs import Stored, find
from paceline.trusted_code import check_trusted

AUTO = "auto"
PERCENTILE = 99.99


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """Options of a quantization. The constructor raises UsageError if one is not valid."""

    calibration: str = AUTO  # methods separated by commas; auto tries all and chooses the best
    symmetric: bool = False
    percentile: float = PERCENTILE
    per_channel: bool = True
    samples: int = 512  # training samples for calibration
    keep_float: bool = False  # leave unsupported operations in float and skip the integer-only stage
    onnx: bool | None = None  # whether to export to ONNX; None: if the packages are installed
    finetune: int = 0  # number of fine-tuning steps

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(f"--samples {self.samples} leaves nothing to calibrate with; use at least one sample")
        if self.finetune < 0:
            raise UsageError(f"--finetune must be a number of steps, not {self.finetune}")
        methods = {calibration.method for calibration in self.calibrations()}  # raises UsageError for unknown methods
        if self.percentile != PERCENTILE and "percentile" not in methods:
            raise UsageError("--percentile needs the percentile method; add it to --calibration or remove --percentile")
        if self.onnx and missing_packages():
            raise UsageError(
                f"--onnx needs {' and '.join(missing_packages())}, not installed here; run pip install 'paceline[int8]'"
            )

    def calibrations(self) -> list[Calibration]:
        """Return the calibration methods with their options, in the order in which they are tried."""
        words = list(words_in(self.calibration))
        if words == [AUTO]:
            words = list(METHODS)
        if not words:
            raise UsageError(f"--calibration is empty; use auto or some of {', '.join(METHODS)}")
        return [
            Calibration(method=word, symmetric=self.symmetric, percentile=self.percentile)
            for word in dict.fromkeys(words)
        ]

    @property
    def writes_onnx(self) -> bool:
        return not missing_packages() if self.onnx is None else self.onnx

    def stored(self) -> QuantizeRequest:
        """Return the options in the form in which the result of the quantization stores them."""
        return QuantizeRequest(
            calibrations=[calibration.method for calibration in self.calibrations()],
            symmetric=self.symmetric,
            percentile=self.percentile,
            weights="per channel" if self.per_channel else "per tensor",
            samples=self.samples,
            finetune_steps=self.finetune,
        )


SUFFIX = ".safetensors"
FINAL = Path("checkpoints") / f"final{SUFFIX}"


@dataclass(frozen=True)
class ModelSource:
    """A checkpoint file, and the recipe that names the checkpoint's model and data."""

    name: str
    recipe: Recipe
    checkpoint: Path


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A trained model with its data, and the checkpoint from which it was loaded."""

    source: ModelSource
    model: nn.Module  # in evaluation mode
    data: Data  # not augmented

    @property
    def recipe(self) -> Recipe:
        return self.source.recipe


def find_source(target: str, runs: Path, changes: Mapping[str, Any], *, trust: bool = False) -> ModelSource:
    """Find a trained model. Return its checkpoint file, and its recipe with `changes` applied.

    `target` is the name or the folder of a run, `last`, or a checkpoint file. If `target` names a quantization of a
    run's model, the result is the model of that run. Raises UsageError if the run's recipe names code outside of the
    current folder, unless `trust` is set.
    """
    path = Path(target)
    if path.suffix == SUFFIX or path.is_file():
        return _source_of_file(path, changes, trust=trust)
    stored = find(target, runs)
    if isinstance(stored.content, Quantization):
        stored = _quantized_run(stored, stored.content.source, runs)
    folder = stored.folder
    if stored.kind != "run":
        raise UsageError(f"{target!r} is a study of several runs; name one of them, in {str(folder / 'runs')!r}")
    checkpoint = folder / FINAL
    if not checkpoint.is_file():
        raise UsageError(f"run {folder.name!r} has no {FINAL}, because it is {stored.status}; name a completed run")
    return ModelSource(folder.name, _recipe_in(folder, changes, trust=trust), checkpoint)


def _quantized_run(stored: Stored, source: str, runs: Path) -> Stored:
    """Return the run that trained the model of a stored quantization.

    The quantization stores the run's name as `source`. With this function, `paceline quantize last` also works if the
    last stored study is itself a quantization. Raises UsageError if the run is not stored, for example because the
    quantization converted a checkpoint file.
    """
    try:
        return find(source, runs)
    except UsageError:
        raise UsageError(
            f"{stored.name!r} is a quantization of {source!r}, which is not stored here; name a run or a checkpoint"
        ) from None


def _source_of_file(path: Path, changes: Mapping[str, Any], *, trust: bool) -> ModelSource:
    if not path.is_file():
        raise UsageError(f"there is no checkpoint {str(path)!r}; name a run or a .safetensors file")
    folder = path.resolve().parent.parent
    if (folder / "recipe.toml").is_file() and path.resolve().parent.name == FINAL.parent.name:
        return ModelSource(f"{folder.name}-{path.stem}", _recipe_in(folder, changes, trust=trust), path)
    model = changes.get("model.name") or _metadata(path).get("model", "")
    if is_reference(model) and not changes.get("model.name"):
        raise UsageError(
            f"checkpoint {path.name!r} says that its model is {model!r}, but code that a file of weights names is "
            "never executed; add --model with the model that you trust"
        )
    if not model or not changes.get("data.name"):
        missing = " and ".join(
            word for word, known in (("--model", model), ("--data", "data.name" in changes)) if not known
        )
        raise UsageError(f"checkpoint {path.name!r} is outside a run folder, so its recipe is unknown; add {missing}")
    return ModelSource(path.stem, Recipe().replace({**changes, "model.name": model}), path)


def _recipe_in(folder: Path, changes: Mapping[str, Any], *, trust: bool) -> Recipe:
    try:
        text = (folder / "recipe.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"run {folder.name!r} has no recipe: {error.strerror}; name another run") from None
    recipe = Recipe.from_toml(text, str(folder / "recipe.toml")).replace(changes)
    check_trusted(recipe.to_dict(), f"run {folder.name!r}", folder=folder, typed=changes, trust=trust)
    return recipe


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UsageError(f"checkpoint {path.name!r} cannot be read: {error}") from None


def load_source(source: ModelSource) -> LoadedModel:
    """Load a model with its trained weights, and its data. Raise UsageError if they cannot be quantized.

    For example, the weights may not fit the model or may not be finite, or the data may have no test samples.
    """
    recipe = source.recipe
    if recipe.train.batchnorm == "off":
        raise UsageError(
            "the model was trained with --batchnorm off, so BatchNorm has no statistics to fold; use another mode"
        )
    metadata = _metadata(source.checkpoint)
    data = load_data(recipe.replace({"data.augment": False}).data, seed=recipe.seed)
    if len(data.train) == 0:
        raise UsageError(f"data {recipe.data.name!r} has no training samples to calibrate with; use other data")
    if len(data.test) == 0:
        raise UsageError(f"data {recipe.data.name!r} has no test samples to evaluate with; use other data")
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model.name, data)
    state = load_file(source.checkpoint)
    reason = _misfit(model, state)
    if reason:
        trained_model = f", of model {metadata['model']!r}," if metadata.get("model") else ""
        raise UsageError(
            f"checkpoint {source.checkpoint.name!r}{trained_model} does not fit model {recipe.model.name!r} on data "
            f"{recipe.data.name!r}: {reason}"
        )
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"weights are not finite: {name!r} holds NaN or infinity; use a run that did not diverge")
    model.load_state_dict(state)
    return LoadedModel(source, model.float().eval(), data)


def _misfit(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Return the first mismatch between a model and stored weights, or an empty string if they fit."""
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in state:
            return f"it has no {name!r}"
        if state[name].shape != tensor.shape:
            return f"{name!r} is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
    extra = next((name for name in state if name not in expected), None)
    return f"the model has no {extra!r}" if extra else ""
