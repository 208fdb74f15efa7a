"""Stages of a quantization, each evaluated on the test set: from the float model to integer-only arithmetic.

A quantization grid maps the values of an activation tensor to 8-bit integers, by a scale, a zero point and limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.data.base import Batch, Dataset
from paceline.quantize.calibration import Calibration, Histogram, grids_for
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.graph import Graph
from paceline.quantize.integer import integer_network
from paceline.quantize.quantized import Grid, Quantized, quantize_graph
from paceline.results.quantize import ACTIVATIONS, BIASES, FLOAT, INTEGER, PER_CHANNEL, PER_TENSOR, TUNED, Stage
from paceline.train.step import Objective

BATCH = 100
MOST_CLASSES = 100
Predict = Callable[[Tensor], Tensor]  # a model as a function from images to scores of classes


@dataclass(frozen=True, eq=False)
class ModelScore:
    """Loss, accuracy and predictions of a float or integer model on a data set."""

    loss: float
    accuracy: float | None
    answers: Tensor  # predicted class of every sample, as int64; empty if the model predicts no classes

    def agreement(self, other: ModelScore) -> float | None:
        """Return the fraction of samples for which two models predict the same class.

        Return None if one of the models predicts no classes.
        """
        if not len(self.answers) or len(self.answers) != len(other.answers):
            return None
        return float((self.answers == other.answers).double().mean())


def float_batch(data: Dataset, indices: Tensor) -> Batch:
    """Return the batch with these sample indices, with floating-point inputs converted to float32."""
    inputs, target = data.batch(indices, 0)
    is_float = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return (inputs.float() if is_float else inputs), target


@torch.no_grad()
def score(predict: Predict, data: Dataset, objective: Objective, on_batch: Callable[[int], None]) -> ModelScore:
    """Evaluate a model on a data set. After every batch, pass the number of samples done so far to `on_batch`."""
    loss, right, answers, samples = 0.0, 0, 0, 0
    classes: list[Tensor] = []
    for indices in torch.arange(len(data)).split(BATCH):
        images, target = float_batch(data, indices)
        output = predict(images)
        loss += float(objective.loss(output, target)) * len(indices)
        correct = objective.correct(output, target)
        if correct is not None:
            right, answers = right + correct[0], answers + correct[1]
        if objective.count_correct is not None and output.dim() == 2:
            classes.append(output.argmax(1))
        samples += len(indices)
        on_batch(samples)
    predicted = torch.cat(classes) if classes else torch.empty(0, dtype=torch.int64)
    return ModelScore(loss / samples, right / answers if answers else None, predicted)


def calibration_batches(data: Dataset, num_samples: int, seed: int) -> Callable[[], Iterator[Tensor]]:
    """Choose random training images, and return a function that yields them in batches.

    Every call of the function yields the same images.
    """
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(len(data), generator=generator)[:num_samples]

    def batches() -> Iterator[Tensor]:
        for part in indices.split(BATCH):
            yield float_batch(data, part)[0]

    return batches


def confusion(first: ModelScore, second: ModelScore, num_classes: int) -> list[list[int]]:
    """Return the confusion matrix of two models' predictions: rows are classes of the first, columns of the second.

    If a model predicts classes beyond `num_classes`, the matrix has rows and columns for these, too. Return an empty
    list if there would be more than MOST_CLASSES rows, or if the models predict no classes.
    """
    if not len(first.answers):
        return []
    size = max(num_classes, *(int(score.answers.max()) + 1 for score in (first, second)))
    if size > MOST_CLASSES:
        return []
    places = first.answers * size + second.answers
    return torch.bincount(places, minlength=size**2).view(size, size).tolist()


def _ignore(*said: Any) -> None:
    del said


@dataclass(frozen=True)
class StageListener:
    """Callbacks that report the progress of a quantization."""

    stage_moves: Callable[[str, int, int], None] = _ignore  # name of the stage, samples done, samples in all
    stage_ends: Callable[[Stage], None] = _ignore


@dataclass(eq=False)
class Evaluator:
    """Evaluates the stages of a quantization on the test set, and collects one table row per stage."""

    data: Dataset
    objective: Objective
    listener: StageListener
    rows: list[Stage] = field(default_factory=list)
    scores: dict[str, ModelScore] = field(default_factory=dict)

    def stage(self, key: str, name: str, predict: Predict, *, calibration: str | None = None) -> ModelScore:
        """Evaluate the model of one stage, and compare the result with that of the first stage, the float model."""
        started = time.perf_counter()
        result = score(
            predict, self.data, self.objective, lambda done: self.listener.stage_moves(name, done, len(self.data))
        )
        first = self.scores.setdefault(FLOAT, result)
        change = None if result.accuracy is None or first.accuracy is None else 100 * (result.accuracy - first.accuracy)
        row = Stage(
            stage=key,
            name=name,
            calibration=calibration,
            test_loss=result.loss,
            test_accuracy=result.accuracy,
            change_points=change,
            agreement=result.agreement(first),
            evaluation_s=time.perf_counter() - started,
        )
        label = f"{key}:{calibration}" if key == ACTIVATIONS else key
        self.scores[label] = result
        self.rows.append(row)
        self.listener.stage_ends(row)
        return result


def weight_stages(evaluator: Evaluator, graph: Graph) -> None:
    """Evaluate the model with int8 weights, first with one scale per layer, then with one scale per channel."""
    for key, per_channel in ((PER_TENSOR, False), (PER_CHANNEL, True)):
        model = Simulated(graph, Rounding(per_channel=per_channel))
        evaluator.stage(key, f"weights int8, {key.removeprefix('weights-').replace('-', ' ')}", model)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration method with the quantization grids that it chose.

    `distance` is the mean squared difference between the outputs with these grids and those of the float model.
    """

    calibration: Calibration
    grids: Mapping[str, Grid]
    distance: float


def activation_stages(
    evaluator: Evaluator,
    graph: Graph,
    histograms: dict[str, Histogram],
    calibrations: list[Calibration],
    *,
    per_channel: bool,
    images: Tensor,
) -> list[Calibrated]:
    """Evaluate the model with int8 weights and activations, once for every calibration method.

    Return each method with its quantization grids.
    """
    calibrated = []
    for calibration in calibrations:
        grids = grids_for(histograms, calibration)
        model = Simulated(graph, Rounding(per_channel=per_channel, grids=grids))
        name = f"activations int8, {calibration.method}"
        evaluator.stage(ACTIVATIONS, name, model, calibration=calibration.method)
        calibrated.append(Calibrated(calibration, grids, _distance(graph, model, images)))
    return calibrated


@torch.no_grad()
def _distance(graph: Graph, model: Simulated, images: Tensor) -> float:
    """Return the mean squared difference between the outputs of a quantized model and of the float model."""
    parts = [(model(part) - graph.run(part)).double().square().flatten() for part in images.split(50)]
    return float(torch.cat(parts).mean())


def closest_calibration(calibrated: list[Calibrated]) -> Calibrated:
    """Return the calibration method with the smallest `distance`, which is measured on training images.

    The test set is not used for this choice.
    """
    return min(calibrated, key=lambda one: one.distance)


def integer_stages(evaluator: Evaluator, graph: Graph, chosen: Calibrated, *, per_channel: bool) -> Quantized:
    """Evaluate the model with int32 biases, then with integer-only arithmetic. Return the int8 model.

    The integer-only evaluation is skipped if an operation has no integer form.
    """
    method = chosen.calibration.method
    model = quantize_graph(graph, chosen.grids, per_channel=per_channel)
    simulated = Simulated(graph, Rounding(per_channel=per_channel, grids=chosen.grids, biases=True))
    evaluator.stage(BIASES, "biases int32", simulated, calibration=method)
    if not graph.left_in_float:
        evaluator.stage(INTEGER, "fully integer", integer_network(model).scores, calibration=method)
    return model


def finetuned_stage(evaluator: Evaluator, graph: Graph, chosen: Calibrated, *, per_channel: bool) -> Quantized:
    """Quantize the fine-tuned network `graph`, evaluate the int8 model, and return it.

    The evaluation uses integer-only arithmetic, or simulated rounding in float if an operation has no integer form.
    """
    method = chosen.calibration.method
    model = quantize_graph(graph, chosen.grids, per_channel=per_channel)
    if graph.left_in_float:
        simulated = Simulated(graph, Rounding(per_channel=per_channel, grids=chosen.grids, biases=True))
        evaluator.stage(TUNED, "fine-tuned, biases int32", simulated, calibration=method)
    else:
        evaluator.stage(TUNED, "fine-tuned, fully integer", integer_network(model).scores, calibration=method)
    return model
