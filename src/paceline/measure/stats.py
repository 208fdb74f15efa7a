"""Statistics of measured times: summaries, confidence intervals and ratios.

Ratios are computed either from repeated runs or from the steps of single runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Student's t, two-sided 95 %, by degrees of freedom.
_T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228]
_T95 += [2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]

PERCENTILES = (50, 90, 95)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, the median (`p50`), and the 90th and 95th percentiles."""
    ordered = sorted(values)
    return {"mean": statistics.fmean(values), **{f"p{share}": percentile(ordered, share) for share in PERCENTILES}}


def summarise_if_complete(
    summarise: Callable[[Sequence[float]], float], values: Sequence[float | None]
) -> float | None:
    """Return `summarise(values)`, or None if `values` is empty or contains None."""
    known = [value for value in values if value is not None]
    return summarise(known) if known and len(known) == len(values) else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of `values`, which need not be sorted, with linear interpolation."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def timed_values(values: Sequence[float], *, warmup: int, limit: int | None) -> list[float]:
    """Return `values[warmup:limit]`, or `values[:limit]` if the former is empty.

    A `limit` of None or 0 means no limit.
    """
    counted = list(values[:limit] if limit else values)
    return counted[warmup:] or counted


def interval95_of_times(times: Sequence[float]) -> tuple[float, float] | None:
    """Return a 95 % confidence interval for the geometric mean of `times`, or None for fewer than two times."""
    bounds = interval95([math.log(time_s) for time_s in times])
    return None if bounds is None else (math.exp(bounds[0]), math.exp(bounds[1]))


def interval95(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % confidence interval for the mean, or None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = student_t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def interval95_of_median(values: Sequence[float], *, num_together: int = 1) -> tuple[float, float]:
    """Return a distribution-free confidence interval of at least 95 % for the median.

    If `num_together` such intervals are computed, the probability that all of them hold is at least 95 % (Bonferroni).
    For very few values, the interval reaches from the smallest to the largest value, and its confidence can be lower.
    """
    ordered = sorted(values)
    count, allowed = len(ordered), 0.025 / num_together
    outside, below = 0.0, 0
    # The median lies below the k-th smallest of n values with the probability of fewer than k heads in n coin tosses.
    while (outside := outside + math.comb(count, below) / 2**count) <= allowed:
        below += 1
    below = max(below, 1)
    return ordered[below - 1], ordered[count - below]


def student_t95(freedom: float) -> float:
    """Return the critical value of Student's t for a two-sided 95 % interval.

    The degrees of freedom, `freedom`, are rounded down, which makes intervals wider.
    """
    whole = max(math.floor(freedom), 1)
    # Beyond the table: Fisher's expansion around the normal value, correct to four digits.
    return _T95[whole - 1] if whole <= len(_T95) else 1.95996 + 2.3723 / whole + 2.8225 / whole**2


@dataclass(frozen=True)
class Ratio:
    """Ratio of two times and its 95 % confidence interval, whose bounds are None if there is too little data."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_different(self) -> bool | None:
        """Whether the confidence interval excludes 1, or None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return not self.low <= 1.0 <= self.high


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the median ratio ours / theirs over pairs of repeated runs, with a 95 % confidence interval.

    The interval is Student's, for the mean of the logarithms of the ratios. Slow periods of the machine affect both
    runs of a pair, and cancel.
    """
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    bounds = interval95(logs)
    value = math.exp(statistics.median(logs))
    if bounds is None:
        return Ratio(value, None, None)
    return Ratio(value, math.exp(bounds[0]), math.exp(bounds[1]))


def unpaired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Return the ratio of geometric means, ours / theirs, of unpaired runs, with a 95 % confidence interval.

    The interval is Welch's, for the difference of the means of the logarithms.
    """
    logs = [[math.log(value) for value in values] for values in (ours, theirs)]
    means = [statistics.fmean(values) for values in logs]
    difference = means[0] - means[1]
    if min(len(values) for values in logs) < 2:
        return Ratio(math.exp(difference), None, None)
    errors = [statistics.variance(values) / len(values) for values in logs]
    shares = sum(error**2 / (len(values) - 1) for error, values in zip(errors, logs, strict=True))
    freedom = sum(errors) ** 2 / shares if shares else math.inf
    half = student_t95(min(freedom, 1e9)) * math.sqrt(sum(errors))
    return Ratio(math.exp(difference), math.exp(difference - half), math.exp(difference + half))


RESAMPLES = 2000
LEAST_STEPS = 10  # that every run needs for the block bootstrap

Numbers = npt.NDArray[np.float64]


def block_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], *, seed: int = 0) -> Ratio:
    """Return the ratio of mean step times, ours / theirs, with a 95 % confidence interval from a block bootstrap.

    `ours` and `theirs` each have one list of step times per run. Step times are autocorrelated, so the bootstrap
    resamples blocks of sqrt(steps) consecutive steps; a block may wrap around the end of its run. The interval does not
    include the variation between runs, which only repeats can show. There is no interval if a run has fewer than
    LEAST_STEPS steps.
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
    """Return RESAMPLES bootstrap samples of the mean step time of `runs`."""
    means: Numbers = np.mean([_resampled_means(np.asarray(steps), generator) for steps in runs], axis=0)
    return means


def _resampled_means(steps: Numbers, generator: np.random.Generator) -> Numbers:
    length = math.ceil(math.sqrt(len(steps)))
    num_blocks = math.ceil(len(steps) / length)
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([steps, steps[:length]]))])
    blocks = sums[length:] - sums[:-length]  # the sum of the block that starts at each step
    starts = generator.integers(0, len(steps), size=(RESAMPLES, num_blocks))
    means: Numbers = blocks[starts].sum(axis=1) / (num_blocks * length)
    return means
