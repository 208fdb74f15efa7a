"""Means, percentiles, intervals and whether two things differ."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.measure.environment import environment
from paceline.measure.stats import (
    Ratio,
    block_ratio,
    interval95,
    interval95_of_times,
    paired_ratio,
    percentile,
    summarise_if_complete,
    summary,
    timed_values,
    unpaired_ratio,
)

FLOATS = st.floats(1e-6, 1e6)


def test_a_summary_needs_every_value() -> None:
    assert summarise_if_complete(statistics.median, [3.0, 1.0, 2.0]) == 2.0
    assert summarise_if_complete(statistics.median, [3.0, None, 2.0]) is None
    assert summarise_if_complete(statistics.fmean, []) is None


def test_percentiles_by_hand() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 95) == pytest.approx(4.8)
    assert percentile([7.0], 95) == 7.0
    assert (percentile([3.0, 1.0], 0), percentile([3.0, 1.0], 100)) == (1.0, 3.0)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_summary_lies_within_the_values(values: list[float]) -> None:
    found = summary(values)
    assert found["mean"] == statistics.fmean(values)
    assert found["p50"] == pytest.approx(statistics.median(values))
    assert min(values) <= found["p50"] <= found["p90"] <= found["p95"] <= max(values)


@given(st.lists(FLOATS, min_size=2, max_size=30), st.integers(1, 99))
def test_percentile_as_the_standard_library_has_it(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(values, percent) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("warmup", "limit", "expected"),
    [(1, None, [1, 2, 3, 4]), (0, None, [0, 1, 2, 3, 4]), (1, 3, [1, 2]), (2, 2, [0, 1]), (9, None, [0, 1, 2, 3, 4])],
)
def test_which_values_count(warmup: int, limit: int | None, expected: list[int]) -> None:
    assert timed_values(range(5), warmup=warmup, limit=limit) == expected


def test_one_measurement_has_no_interval() -> None:
    assert interval95([1.0]) is None
    assert interval95_of_times([1.0]) is None


# Student's t, two-sided 95 %, from printed tables, by degrees of freedom.
@pytest.mark.parametrize(
    ("freedom", "t"),
    [(1, 12.706), (2, 4.303), (9, 2.262), (20, 2.086), (21, 2.080), (30, 2.042), (60, 2.000), (120, 1.980)],
)
def test_intervals_are_as_wide_as_students(freedom: int, t: float) -> None:
    values = [float(index % 2) for index in range(freedom + 1)]
    bounds = interval95(values)
    assert bounds is not None
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    # Tables have four digits.
    assert bounds == pytest.approx((statistics.fmean(values) - half, statistics.fmean(values) + half), rel=2e-3)


def test_an_interval_of_times_is_by_factors() -> None:
    bounds = interval95_of_times([1.0, 4.0])
    assert bounds is not None
    assert math.sqrt(bounds[0] * bounds[1]) == pytest.approx(2.0)  # around the geometric mean
    assert bounds[0] > 0


def test_ratio_of_pairs() -> None:
    ratio = paired_ratio([2.0, 4.0, 20.0], [1.0, 2.0, 10.0])
    assert ratio == Ratio(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))
    assert ratio.is_different is True
    assert paired_ratio([2.0], [1.0]) == Ratio(pytest.approx(2.0), None, None)
    assert paired_ratio([2.0], [1.0]).is_different is None
    assert paired_ratio([1.0, 1.2, 0.9], [1.1, 1.0, 1.0]).is_different is False
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=2, max_size=8))
def test_a_ratio_turned_round(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    there, back = paired_ratio(ours, theirs), paired_ratio(theirs, ours)
    assert there.value == pytest.approx(1 / back.value)
    assert there.low is not None
    assert back.high is not None
    assert math.log(there.low) == pytest.approx(-math.log(back.high), abs=1e-6)


def test_ratio_of_repeats_that_were_not_taken_side_by_side() -> None:
    ratio = unpaired_ratio([2.0, 2.0, 2.0], [1.0, 1.0])
    assert ratio == Ratio(pytest.approx(2.0), pytest.approx(2.0), pytest.approx(2.0))
    assert unpaired_ratio([2.0, 2.0], [1.0]) == Ratio(pytest.approx(2.0), None, None)
    assert unpaired_ratio([1.0, 1.2, 0.9], [1.1, 1.0, 1.0, 0.95]).is_different is False


def test_welchs_interval_by_hand() -> None:
    # Variances 1 and 4 over 5 and 10 values: 0.2 + 0.4, and (0.6)^2 / (0.04 / 4 + 0.16 / 9) = 12.96 degrees.
    ours = [math.exp(value) for value in (4.0, 4.0, 5.0, 6.0, 6.0)]
    spread = 2 * math.sqrt(9 / 10)
    theirs = [math.exp(3.0 + sign * spread) for sign in (1, -1) for _ in range(5)]
    ratio = unpaired_ratio(ours, theirs)
    half = 2.179 * math.sqrt(0.6)  # Student's t for 12 degrees
    assert math.log(ratio.value) == pytest.approx(2.0)
    assert ratio.low is not None
    assert math.log(ratio.low) == pytest.approx(2.0 - half, abs=1e-3)


def test_blocks_of_steps_give_an_interval() -> None:
    generator = random.Random(1)
    ours = [1.1 + generator.gauss(0, 0.01) for _ in range(400)]
    theirs = [1.0 + generator.gauss(0, 0.01) for _ in range(300)]
    ratio = block_ratio([ours], [theirs])
    assert ratio.value == pytest.approx(1.1, rel=5e-3)
    assert ratio.low is not None
    assert ratio.high is not None
    assert 1.095 < ratio.low < ratio.value < ratio.high < 1.105
    assert block_ratio([ours], [theirs]) == ratio  # the same steps give the same interval
    assert block_ratio([ours[:9]], [theirs]) == Ratio(pytest.approx(statistics.fmean(ours[:9]), rel=5e-3), None, None)


def test_steps_that_are_slow_together_widen_the_interval() -> None:
    # The same values: alternating, or in long bursts, which say much less about the mean.
    alternating = [1.0 + 0.5 * (step % 2) for step in range(400)]
    bursts = sorted(alternating)
    narrow, wide = (block_ratio([steps], [[1.0] * 400]) for steps in (alternating, bursts))
    assert narrow.low is not None
    assert narrow.high is not None
    assert wide.low is not None
    assert wide.high is not None
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    generator = random.Random(2)
    hits = 0
    for seed in range(200):
        ours, theirs = ([generator.gauss(1.0, 0.2) for _ in range(100)] for _ in range(2))
        ratio = block_ratio([ours], [theirs], seed=seed)
        hits += ratio.is_different is False
    assert hits >= 170  # 95 % promised; blocks of few steps know a little less than they think


def test_facts_of_the_machine() -> None:
    facts = environment()
    assert facts["num_cores"] >= 1
    assert facts["memory_bytes"] > 1 << 28
    assert facts["torch"]
    assert "/" not in facts["command"][0]  # where a person keeps things is nobody's business
