"""Stages of a quantization, from float to integers only, each evaluated on the test set."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.data.base import Dataset
from paceline.quantize.calibration import Calibration, Histogram, grids_for
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.graph import Graph
from paceline.quantize.grid import Grid
from paceline.quantize.integer import integer_network
from paceline.quantize.quantized import Quantized, quantized
from paceline.results.quantize import ACTIVATIONS, BIASES, FLOAT, INTEGER, PER_CHANNEL, PER_TENSOR, TUNED, Stage
from paceline.study.quantize.scoring import ModelScore, Predict, score
from paceline.train.step import Objective


def _ignore(*said: Any) -> None:
    del said


@dataclass(frozen=True)
class StageListener:
    """Progress callbacks of stages."""

    stage_moves: Callable[[str, int, int], None] = _ignore  # name of the stage, samples done, total samples
    stage_ends: Callable[[Stage], None] = _ignore


@dataclass(eq=False)
class Judge:
    """Evaluates stages on the test set and collects their rows."""

    data: Dataset
    objective: Objective
    listener: StageListener
    rows: list[Stage] = field(default_factory=list)
    scores: dict[str, ModelScore] = field(default_factory=dict)

    def stage(self, key: str, name: str, predict: Predict, *, calibration: str | None = None) -> ModelScore:
        """Evaluate a stage and compare it with the first one, the float model."""
        started = time.perf_counter()
        found = score(
            predict, self.data, self.objective, lambda done: self.listener.stage_moves(name, done, len(self.data))
        )
        first = self.scores.setdefault(FLOAT, found)
        change = None if found.accuracy is None or first.accuracy is None else 100 * (found.accuracy - first.accuracy)
        row = Stage(
            stage=key,
            name=name,
            calibration=calibration,
            test_loss=found.loss,
            test_accuracy=found.accuracy,
            change_points=change,
            agreement=found.agreement(first),
            evaluation_s=time.perf_counter() - started,
        )
        label = f"{key}:{calibration}" if key == ACTIVATIONS else key
        self.scores[label] = found
        self.rows.append(row)
        self.listener.stage_ends(row)
        return found


def weight_stages(judge: Judge, graph: Graph) -> None:
    """Evaluate int8 weights, with one scale per layer and with one per channel."""
    for key, per_channel in ((PER_TENSOR, False), (PER_CHANNEL, True)):
        model = Simulated(graph, Rounding(per_channel=per_channel))
        judge.stage(key, f"weights int8, {key.removeprefix('weights-').replace('-', ' ')}", model)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration method with its grids, and the distance of its outputs from the float model's."""

    calibration: Calibration
    grids: Mapping[str, Grid]
    distance: float


def activation_stages(
    judge: Judge,
    graph: Graph,
    histograms: dict[str, Histogram],
    calibrations: list[Calibration],
    *,
    per_channel: bool,
    images: Tensor,
) -> list[Calibrated]:
    """Evaluate int8 weights and activations with every calibration method."""
    found = []
    for calibration in calibrations:
        grids = grids_for(histograms, calibration)
        model = Simulated(graph, Rounding(per_channel=per_channel, grids=grids))
        name = f"activations int8, {calibration.method}"
        judge.stage(ACTIVATIONS, name, model, calibration=calibration.method)
        found.append(Calibrated(calibration, grids, _distance(graph, model, images)))
    return found


@torch.no_grad()
def _distance(graph: Graph, model: Simulated, images: Tensor) -> float:
    """Return the mean squared difference from the float model's outputs on training images."""
    parts = [(model(part) - graph.run(part)).double().square().flatten() for part in images.split(50)]
    return float(torch.cat(parts).mean())


def best_of(calibrated: list[Calibrated]) -> Calibrated:
    """Return the method with the smallest distance on training images; the test set is not used to choose."""
    return min(calibrated, key=lambda one: one.distance)


def integer_stages(judge: Judge, graph: Graph, chosen: Calibrated, *, per_channel: bool) -> Quantized:
    """Evaluate int32 biases, then the integer-only network."""
    method = chosen.calibration.method
    model = quantized(graph, chosen.grids, per_channel=per_channel)
    simulated = Simulated(graph, Rounding(per_channel=per_channel, grids=chosen.grids, biases=True))
    judge.stage(BIASES, "biases int32", simulated, calibration=method)
    if not graph.left_in_float:
        judge.stage(INTEGER, "fully integer", integer_network(model).scores, calibration=method)
    return model


def tuned_stage(judge: Judge, graph: Graph, chosen: Calibrated, *, per_channel: bool) -> Quantized:
    """Evaluate the fine-tuned weights, in integers only if every operation has an integer form."""
    method = chosen.calibration.method
    model = quantized(graph, chosen.grids, per_channel=per_channel)
    if graph.left_in_float:
        simulated = Simulated(graph, Rounding(per_channel=per_channel, grids=chosen.grids, biases=True))
        judge.stage(TUNED, "fine-tuned, biases int32", simulated, calibration=method)
    else:
        judge.stage(TUNED, "fine-tuned, fully integer", integer_network(model).scores, calibration=method)
    return model
