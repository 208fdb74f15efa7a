"""The quantize study: convert a model to int8 in stages, evaluate every stage, and store the models and results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.durable_files import durable_path
from paceline.errors import PacelineError, RunError, UsageError
from paceline.interrupts import deferred
from paceline.launch.base import WorkerPool
from paceline.measure.environment import environment
from paceline.quantize.calibration import observe
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.fx_trace import trace
from paceline.quantize.graph import Graph, op_names
from paceline.quantize.onnx_model import missing_packages
from paceline.quantize.quantized import INTEGERS_FILE, Quantized, tensors_of
from paceline.recipe import Recipe
from paceline.results.quantize import FLOAT, INTEGER, TUNED, Deployment, Finetuning, FloatOperation, Quantization, Sizes
from paceline.results.study import DONE, FAILED, INTERRUPTED, RUNNING, SCHEMA, StudyResult
from paceline.results.value import changed
from paceline.runs import Folder, timestamped, without_timestamp
from paceline.runs.store import disk_errors
from paceline.study.entries import Entry, check_models
from paceline.study.quantize.deploy import INT8_FILE, deploy
from paceline.study.quantize.finetune import divergence_error, finetune
from paceline.study.quantize.histograms import activation_pictures, weight_pictures
from paceline.study.quantize.source import LoadedModel, QuantizeOptions
from paceline.study.quantize.stages import (
    Calibrated,
    Evaluator,
    StageListener,
    activation_stages,
    calibration_batches,
    closest_calibration,
    confusion,
    finetuned_stage,
    float_batch,
    integer_stages,
    weight_stages,
)
from paceline.train.replicas import save_weights
from paceline.train.step import build_objective

UNFINISHED = "unfinished quantize"  # the study's name while it has no result, since a Quantization has every field


@dataclass(frozen=True, eq=False)
class FineTuning:
    """Settings of quantization-aware fine-tuning: recipe, strategy, and a function that starts the workers."""

    recipe: Recipe
    entry: Entry
    launch: Callable[[], AbstractContextManager[WorkerPool]]


def trace_model(loaded: LoadedModel, request: QuantizeOptions) -> Graph:
    """Trace the model to a graph of operations. Raise UsageError if the model cannot be quantized."""
    example, target = float_batch(loaded.data.train, torch.arange(min(2, len(loaded.data.train))))
    if not isinstance(example, Tensor):
        raise UsageError(
            f"data {loaded.recipe.data.name!r} has inputs of several tensors; "
            "only models with one input tensor can be quantized"
        )
    _try_once(loaded, example, target)
    graph = trace(loaded.model, example)
    if not graph.layers:
        raise UsageError(
            f"model {loaded.recipe.model.name!r} has no convolution or linear layer that could be quantized; "
            "use another model"
        )
    if graph.left_in_float and not request.keep_float:
        raise UsageError(
            f"model {loaded.recipe.model.name!r} has operations without an integer form: "
            f"{op_names(graph.left_in_float)}; use --keep-float to leave them in float "
            "(the model is then not evaluated in integers only)"
        )
    return graph


@torch.no_grad()
def _try_once(loaded: LoadedModel, example: Tensor, target: Any) -> None:
    """Compute the loss of one small batch. Raise UsageError if model, loss and data do not fit together."""
    recipe = loaded.recipe
    try:
        build_objective(recipe.train.loss).loss(loaded.model(example), target)
    except UsageError:
        raise
    except Exception as error:  # whatever a user's model or loss raises
        raise UsageError(
            f"model {recipe.model.name!r} with loss {recipe.train.loss!r} fails on data {recipe.data.name!r}: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error


def quantize(
    loaded: LoadedModel,
    request: QuantizeOptions,
    *,
    out: Path,
    listener: StageListener,
    output: Path | None = None,
    tuning: FineTuning | None = None,
) -> tuple[Quantization, Path]:
    """Run every stage of a quantization. Return the stored result and its folder, which is created in `out`.

    If a stage fails, the folder keeps the files written so far. If `output` is set, the int8 ONNX file is also copied
    to that path. If `tuning` is set, the model is also fine-tuned.
    """
    graph = trace_model(loaded, request)
    if request.onnx and graph.left_in_float:
        left = op_names(graph.left_in_float)
        raise UsageError(f"no ONNX file can be written with {left} left in float; remove --onnx and -o")
    if tuning is not None:
        parameters = Simulated(graph, Rounding()).parameters()
        check_models([tuning.entry], [TensorSpec.of(parameter) for parameter in parameters])
    first = _first_result(loaded)
    with Folder(out, timestamped(f"quantize-{without_timestamp(loaded.source.name)}")) as folder:
        folder.begin(loaded.recipe, first)
        try:
            study = _QuantizationRun(loaded, request, graph, folder, listener).run(tuning)
            with deferred():
                folder.write_content(study)
        except BaseException as error:
            _store_unfinished(folder, first, error)
            raise
    if output is not None:
        with disk_errors(output), durable_path(output) as copy:
            shutil.copyfile(folder.path / INT8_FILE, copy)
    return study, folder.path


def _first_result(loaded: LoadedModel) -> StudyResult:
    """Return what is stored until the quantization is complete."""
    return StudyResult(
        schema=SCHEMA,
        kind="study",
        study=UNFINISHED,
        name=loaded.recipe.name,
        started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        status=RUNNING,
        recipe=loaded.recipe.to_dict(),
        environment=environment(),
    )


def _store_unfinished(folder: Folder, first: StudyResult, error: BaseException) -> None:
    status = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
    try:
        with deferred():
            folder.write_content(changed(first, status=status, error=str(error) or None))
        error.add_note(f"the quantization is stored as {status}: {folder.path}")
    except RunError as failure:
        error.add_note(f"the folder of the quantization is incomplete ({failure}): {folder.path}")


class _QuantizationRun:
    """One execution of a quantization, with the evaluator of its stages and the images for calibration."""

    def __init__(
        self, loaded: LoadedModel, request: QuantizeOptions, graph: Graph, folder: Folder, listener: StageListener
    ) -> None:
        self._loaded, self._request, self._graph, self._folder = loaded, request, graph, folder
        self._evaluator = Evaluator(loaded.data.test, build_objective(loaded.recipe.train.loss), listener)
        self._batches = calibration_batches(loaded.data.train, request.samples, loaded.recipe.seed)
        self._num_samples = min(request.samples, len(loaded.data.train))
        self._images = torch.cat(list(self._batches()))[:200]  # to compare quantized outputs and tensors with float

    def run(self, tuning: FineTuning | None) -> Quantization:
        started, stamp, machine = time.perf_counter(), time.strftime("%Y-%m-%dT%H:%M:%S%z"), environment()
        loaded, request, graph, evaluator = self._loaded, self._request, self._graph, self._evaluator
        per_channel = request.per_channel
        evaluator.stage(FLOAT, "float", loaded.model)
        weight_stages(evaluator, graph)
        histograms = observe(graph, self._batches)
        calibrated = activation_stages(
            evaluator, graph, histograms, request.calibrations(), per_channel=per_channel, images=self._images
        )
        chosen = closest_calibration(calibrated)
        model = integer_stages(evaluator, graph, chosen, per_channel=per_channel)
        finetuned = None
        if tuning is not None:
            model, finetuned = self._tune(tuning, chosen)
        deployed, deployed_reason = self._deploy(model)
        save_weights(tensors_of(model), self._folder.path / INTEGERS_FILE, {"model": loaded.recipe.model.name})
        last = evaluator.scores.get(TUNED) or evaluator.scores.get(INTEGER) or next(reversed(evaluator.scores.values()))
        return Quantization(
            schema=SCHEMA,
            kind="study",
            study=Quantization.study_name,
            name=loaded.recipe.name,
            started=stamp,
            status=DONE,
            source=loaded.source.name,
            recipe=loaded.recipe.to_dict(),
            environment=machine,
            request=request.stored(),
            num_test_samples=len(loaded.data.test),
            num_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
            left_in_float=[FloatOperation(name=op.name, what=op.what) for op in graph.left_in_float],
            stages=evaluator.rows,
            chosen_calibration=chosen.calibration.method,
            distances={one.calibration.method: one.distance for one in calibrated},
            num_calibration_samples=self._num_samples,
            finetuned=finetuned,
            weights=weight_pictures(model.graph, per_channel=per_channel),
            activations=activation_pictures(
                model.graph, histograms, calibrated, chosen, self._images, per_channel=per_channel
            ),
            deployed=deployed,
            deployed_reason=deployed_reason,
            confusion=confusion(evaluator.scores[FLOAT], last, loaded.data.num_classes),
            sizes=Sizes(float_bytes=_float_bytes(graph), int8_bytes=model.weight_bytes),
            wall_s=time.perf_counter() - started,
        )

    def _tune(self, tuning: FineTuning, chosen: Calibrated) -> tuple[Quantized, Finetuning]:
        """Fine-tune the weights with the quantization grids (scales, zero points) of the chosen calibration method.

        Return the int8 model with these weights, and a summary of the training.
        """
        per_channel, file = self._request.per_channel, self._folder.path / "fine-tuned.safetensors"
        with tuning.launch() as launcher:
            graph, finetuned = finetune(
                launcher,
                self._loaded.source,
                tuning.recipe,
                tuning.entry,
                self._graph,
                chosen.grids,
                per_channel=per_channel,
                file=file,
            )
        try:
            model = finetuned_stage(self._evaluator, graph, chosen, per_channel=per_channel)
        except PacelineError as error:  # the weights are finite, but too large for integers
            raise divergence_error(str(error), tuning.recipe) from error
        return model, finetuned

    def _deploy(self, model: Quantized) -> tuple[Deployment | None, str]:
        """Export the models to ONNX and measure them. Return the measurements and an empty string.

        If an export was not requested or is not possible, return None and the reason.
        """
        if not self._request.writes_onnx:
            missing = " and ".join(missing_packages())
            return None, f"{missing} not installed: pip install 'paceline[int8]'" if missing else "not requested"
        if self._graph.left_in_float:
            return None, f"operations without an integer form are not written: {op_names(self._graph.left_in_float)}"
        images, _ = float_batch(self._loaded.data.test, torch.arange(min(32, len(self._loaded.data.test))))
        return deploy(self._evaluator, self._loaded.model, self._graph, model, images, self._folder.path), ""


def _float_bytes(graph: Graph) -> int:
    return sum(4 * (op.weight.numel() + op.bias.numel()) for op in graph.layers)
