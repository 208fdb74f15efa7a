"""An interval from the steps of single runs, where there are no repeats to take it from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paceline.measure.stats import Ratio

RESAMPLES = 2000
LEAST_STEPS = 10  # fewer cannot be drawn again in blocks

Numbers = npt.NDArray[np.float64]


def block_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], *, seed: int = 0) -> Ratio:
    """Our mean over theirs; each side is one list of step times per run. The interval is by block bootstrap.

    Steps that follow one another are slow together, so they are drawn again in blocks of sqrt(steps), round the end of
    the run. What differs from run to run stays unseen: only repeats show that.
    """
    generator = np.random.default_rng(seed)
    value = _mean(ours) / _mean(theirs)
    if min(len(steps) for steps in [*ours, *theirs]) < LEAST_STEPS:
        return Ratio(value, None, None)
    logs = np.log(_resampled(ours, generator)) - np.log(_resampled(theirs, generator))
    low, high = np.quantile(logs, [0.025, 0.975])
    return Ratio(value, math.exp(low), math.exp(high))


def _mean(runs: Sequence[Sequence[float]]) -> float:
    return float(np.mean([np.mean(steps) for steps in runs]))


def _resampled(runs: Sequence[Sequence[float]], generator: np.random.Generator) -> Numbers:
    """Means of a side, drawn again many times."""
    means: Numbers = np.mean([_resampled_means(np.asarray(steps), generator) for steps in runs], axis=0)
    return means


def _resampled_means(steps: Numbers, generator: np.random.Generator) -> Numbers:
    length = math.ceil(math.sqrt(len(steps)))
    num_blocks = math.ceil(len(steps) / length)
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([steps, steps[:length]]))])
    blocks = sums[length:] - sums[:-length]  # one for every first step
    starts = generator.integers(0, len(steps), size=(RESAMPLES, num_blocks))
    means: Numbers = blocks[starts].sum(axis=1) / (num_blocks * length)
    return means
