"""Analysis of a scale study: speed-up, efficiency, and the number of workers up to which throughput grows."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.stats import interval95, paired_ratio
from paceline.results import Gain, Interval, Row, Scaling, changed
from paceline.results.study import ScalingLimit
from paceline.study.entries import ONE_WORKER
from paceline.study.run_results import compare_rows

STRONG, WEAK = "strong", "weak"
MODES = (STRONG, WEAK)
MORE, SAME, LESS, UNKNOWN = "more", "no difference", "less", "one repeat cannot tell"
PARTS = ("compute", "communication", "overlap", "waiting", "data", "rest")


def modes_of(rows: Sequence[Row]) -> list[str]:
    """Return the scaling modes in which rows were measured, strong before weak."""
    measured = {mode_of(row) for row in rows}
    return [mode for mode in MODES if mode in measured]


def mode_of(row: Row) -> str:
    assert row.point is not None, "a row of a scaling study has a point"
    return str(row.point["mode"])


def reference_of(rows: Sequence[Row], mode: str) -> Row | None:
    """Return the one-worker row with which the rows of `mode` (strong or weak scaling) are compared, or None."""
    return next((row for row in rows if row.label == ONE_WORKER and mode_of(row) == mode), None)


def rows_by_strategy(rows: Sequence[Row], mode: str) -> dict[str, list[Row]]:
    """Return the rows of `mode` (strong or weak scaling) by strategy, sorted by number of workers.

    The one-worker row is left out.
    """
    in_mode = [row for row in rows if mode_of(row) == mode and row.label != ONE_WORKER]
    labels = dict.fromkeys(row.label for row in in_mode)
    return {label: sorted((row for row in in_mode if row.label == label), key=_num_workers) for label in labels}


def add_scaling(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their speed-up and efficiency added, as `scaling`.

    Also compare the strategies that have the same mode and number of workers (`versus_fastest` and `versus_none`).
    """
    scaled: dict[tuple[str, str, int], Row] = {}
    for mode in modes_of(rows):
        reference = reference_of(rows, mode)
        lines = rows_by_strategy(rows, mode)
        in_mode = [] if reference is None else [changed(reference, scaling=_scaling(reference, reference, None))]
        by_workers: dict[int, list[Row]] = {}
        for line in lines.values():
            for row, before in zip(line, [reference, *line[:-1]], strict=True):
                row = changed(row, scaling=_scaling(row, reference, before))
                by_workers.setdefault(_num_workers(row), []).append(row)
        in_mode += [row for group in by_workers.values() for row in _compare_points(group)]
        scaled |= {_point_key(row): row for row in in_mode}
    return [scaled[_point_key(row)] for row in rows]


def _point_key(row: Row) -> tuple[str, str, int]:
    return mode_of(row), row.label, _num_workers(row)


def best_point(rows: Sequence[Row]) -> Row:
    """Return the row with the highest throughput among the rows with several workers that synchronise.

    If no such row exists, choose among all rows with several workers. If none has several workers, choose among all.
    """
    several = [row for row in rows if row.workers > 1]
    rivals = [row for row in several if row.guarantee != "NONE"] or several or rows
    return max(rivals, key=lambda row: row.samples_per_s)


def paying(rows: Sequence[Row]) -> list[ScalingLimit]:
    """Return, for every mode and strategy, the number of workers up to which throughput grows.

    Numbers of workers are examined in increasing order. A number "pays" if its throughput is significantly higher than
    that of the previous number that pays; one worker always pays. `pays_until` is the largest number that pays. It is
    None if no speed-up has a confidence interval, because there is a single repeat or no measurement of one worker.
    """
    paying_rows = []
    for mode in modes_of(rows):
        reference = reference_of(rows, mode)
        for label, line in rows_by_strategy(rows, mode).items():
            speedups = {1: 1.0, **{_num_workers(row): speedup_of(row) or 0.0 for row in line}}
            best = max(line, key=lambda row: speedup_of(row) or 0.0).scaling or Scaling()
            until, reached, next_gain = _last_paying(line, reference)
            is_known = any(row.scaling is not None and row.scaling.speedup_interval95 for row in line)
            paying_rows.append(
                ScalingLimit(
                    mode=mode,
                    label=label,
                    guarantee=line[0].guarantee,
                    workers=[_num_workers(row) for row in line],
                    pays_until=until if is_known else None,
                    last_gain=reached,
                    next_gain=next_gain,
                    best_workers=max(speedups, key=lambda n: speedups[n]) if reference is not None else None,
                    best_speedup=best.speedup,
                    best_speedup_interval95=best.speedup_interval95,
                )
            )
    return paying_rows


def speedup_of(row: Row) -> float | None:
    return None if row.scaling is None else row.scaling.speedup


def _last_paying(line: Sequence[Row], reference: Row | None) -> tuple[int, Gain | None, Gain | None]:
    """Return the largest number of workers that pays (see `paying`), and two gains in throughput.

    The first gain is from the previous number that pays to the largest. The second gain is from the largest number that
    pays to the next measured number, which does not pay. A gain is None if there is no previous or no next number.
    """
    if reference is None:
        return 1, None, None
    last, reached, missed = reference, None, None
    for row in line:
        gain = _gain(row, last)
        if gain.verdict == MORE:
            last, reached, missed = row, gain, None
        else:
            missed = missed or gain
    return _num_workers(last), reached, missed


def _scaling(row: Row, reference: Row | None, before: Row | None) -> Scaling:
    """Compare a row with `reference`, the one-worker row, and with `before`.

    `before` is the row with the next smaller number of workers.
    """
    scaling = changed(_split_in_seconds(row), gain=_gain(row, before) if before is not None else None)
    if reference is None:
        return scaling
    num_workers, alone_s = _num_workers(row), reference.iteration_s.mean
    speedup, bounds = _throughput(row, reference)
    share = _work(row) / num_workers  # samples per worker and step, relative to the one-worker row
    pairs = zip(row.iteration_mean_s_repeats, reference.iteration_mean_s_repeats, strict=False)
    differences = interval95([ours - theirs * share for ours, theirs in pairs])
    return changed(
        scaling,
        reference_s=alone_s,
        ideal_s=alone_s * share,
        speedup=speedup,
        speedup_interval95=bounds,
        efficiency=speedup / num_workers,
        efficiency_interval95=(bounds[0] / num_workers, bounds[1] / num_workers) if bounds else None,
        beyond_ideal_s=row.iteration_s.mean - alone_s * share,
        beyond_ideal_s_interval95=differences if row is not reference else None,
    )


def _gain(row: Row, before: Row) -> Gain:
    ratio, bounds = _throughput(row, before)
    if bounds is None:
        verdict = UNKNOWN
    else:
        verdict = SAME if bounds[0] <= 1 <= bounds[1] else MORE if bounds[0] > 1 else LESS
    return Gain(
        workers=_num_workers(row),
        over_workers=_num_workers(before),
        ratio=ratio,
        interval95=bounds,
        verdict=verdict,
    )


def _throughput(row: Row, other: Row) -> tuple[float, Interval | None]:
    """Return a row's throughput relative to another row's, with a confidence interval from paired repeats.

    If one of the rows failed in a later repeat, only the repeats that both rows have are paired.
    """
    work = _work(row) / _work(other)
    ours, theirs = row.iteration_mean_s_repeats, other.iteration_mean_s_repeats
    common = min(len(ours), len(theirs))
    value = work * other.iteration_s.mean / row.iteration_s.mean
    ratio = paired_ratio(theirs[:common], ours[:common])
    if row is other or ratio.low is None or ratio.high is None:
        return value, None
    return value, (work * ratio.low, work * ratio.high)


def _split_in_seconds(row: Row) -> Scaling:
    """Return the parts of the step time in seconds. All are None if they were not measured."""
    if row.split is None:
        return Scaling()
    mean = row.split.mean
    return Scaling(
        **{f"{part}_s": getattr(mean, f"{part}_s") for part in PARTS},
        communication_share=mean.communication_s / mean.step_s if mean.step_s else None,
    )


def _compare_points(rows: Sequence[Row]) -> list[Row]:
    """Compare the strategies of one mode and number of workers, using only the repeats that all of them have."""
    common = min(len(row.iteration_mean_s_repeats) for row in rows)
    same = [changed(row, iteration_mean_s_repeats=row.iteration_mean_s_repeats[:common]) for row in rows]
    return [
        changed(row, versus_fastest=other.versus_fastest, versus_none=other.versus_none)
        for row, other in zip(rows, compare_rows(same), strict=True)
    ]


def _work(row: Row) -> int:
    """Return the samples per step as a multiple of those of the one-worker row."""
    return _num_workers(row) if mode_of(row) == WEAK else 1


def _num_workers(row: Row) -> int:
    assert row.point is not None, "a row of a scaling study has a point"
    workers = row.point["workers"]
    assert isinstance(workers, int), "points of a scaling study are numbers of workers"
    return workers
