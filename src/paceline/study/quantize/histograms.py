"""Histograms of weights and activations for the report of a quantization, with signal-to-noise ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paceline.quantize.calibration import Histogram, histogram_of
from paceline.quantize.fake_quant import Rounding, Simulated, activation_noise, rounded_weight, weight_noise
from paceline.quantize.graph import Graph
from paceline.quantize.quantized import weight_scales
from paceline.results.quantize import ActivationPicture, WeightPicture
from paceline.study.quantize.stages import Calibrated

WEIGHT_BINS, ACTIVATION_BINS = 101, 128


def weight_pictures(graph: Graph, *, per_channel: bool) -> list[WeightPicture]:
    """Return two histograms for every layer: its weights before and after rounding to int8, with the same bins."""
    found = []
    for op in graph.layers:
        largest = float(op.weight.abs().max()) or 1.0
        after = rounded_weight(op.weight, weight_scales(op.weight, per_channel=per_channel))
        found.append(
            WeightPicture(
                layer=op.name,
                kind=op.kind,
                shape=list(op.weight.shape),
                low=-largest,
                high=largest,
                before=_counts(op.weight, largest),
                after=_counts(after, largest),
                snr_db=weight_noise(op, per_channel=per_channel),
            )
        )
    return found


def _counts(values: Tensor, largest: float) -> list[int]:
    values = values.clamp(-largest, largest)  # rounding may slightly exceed the largest weight
    return [int(count) for count in histogram_of(values, -largest, largest, WEIGHT_BINS).tolist()]


@torch.no_grad()
def activation_pictures(
    graph: Graph,
    histograms: Mapping[str, Histogram],
    calibrated: Sequence[Calibrated],
    chosen: Calibrated,
    images: Tensor,
    *,
    per_channel: bool,
) -> list[ActivationPicture]:
    """Return a histogram of every activation tensor.

    Each histogram comes with the range of values that every calibration method chose, and with the signal-to-noise
    ratio in decibels under the `chosen` method.
    """
    rounding = Rounding(per_channel=per_channel, grids=chosen.grids, biases=True)
    noise = activation_noise(graph, Simulated(graph, rounding), images.split(25))
    kinds = {op.name: op.kind for op in graph.ops}
    return [
        ActivationPicture(
            tensor=name,
            kind=kinds.get(name, "input"),
            low=histogram.low,
            high=histogram.high,
            counts=[int(count) for count in histogram.coarser(ACTIVATION_BINS).counts.tolist()],
            ranges={one.calibration.method: one.grids[name].range for one in calibrated},
            chosen=chosen.calibration.method,
            scale=chosen.grids[name].scale,
            zero_point=chosen.grids[name].zero_point,
            snr_db=noise.get(name),
        )
        for name, histogram in histograms.items()
    ]
