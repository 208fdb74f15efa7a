"""Results of runs, computed from the workers' reports, and table rows that compare the results.

All functions are pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.measure.sampler import summarise_network, summarise_resources
from paceline.measure.stats import (
    Ratio,
    interval95_of_times,
    paired_ratio,
    summarise_if_complete,
    summary,
    timed_values,
)
from paceline.recipe import Recipe
from paceline.results import Final, Interval, Row, RunResult, Staleness, TimeSummary, Versus, WorkerResult, changed
from paceline.results.worker_report import WorkerReport
from paceline.strategies.capabilities import STALENESS
from paceline.study.entries import Entry
from paceline.study.run_analysis import (
    RunAnalysis,
    combine_targets,
    cost_of_target,
    evaluations_with_bytes,
    stragglers_of_most_repeats,
    training_curve,
)


def run_result(
    recipe: Recipe, entry: Entry, workers: Sequence[WorkerReport], total_s: float, analysis: RunAnalysis | None = None
) -> RunResult:
    """Return the result of one run from its workers' reports and, if passed, the analysis of the workers' files."""
    train = recipe.train
    analysis = analysis or RunAnalysis()

    def without_warmup(values: Sequence[float]) -> list[float]:
        return timed_values(values, warmup=train.warmup_iterations, limit=train.timed_iterations)

    times = [without_warmup(worker.iteration_s) for worker in workers]
    busy_s = max(sum(values) for values in times)  # until the slowest worker is done, also if workers are asynchronous
    samples = sum(sum(without_warmup(worker.num_samples)) for worker in workers)
    epoch_s, epoch_without_data_s = _epoch_times(workers)
    num_steps = len(workers[0].iteration_s)
    return RunResult(
        strategy=entry.name,
        label=entry.label,
        options=entry.options,
        codec=entry.codec,
        comm=recipe.comm,
        workers=len(workers),
        servers=entry.num_servers,
        guarantee=entry.guarantee,
        batchnorm=train.batchnorm,
        steps=num_steps,
        timed_steps=len(times[0]),
        # The warm-up is timed too if there are no other steps.
        warmup_steps=min(num_steps, train.timed_iterations or num_steps) - len(times[0]),
        iteration_s=TimeSummary(**summary([value for values in times for value in values])),
        samples_per_s=samples / busy_s,
        epoch_s=epoch_s,
        epoch_without_data_s=epoch_without_data_s,
        train_s=max(worker.train_s for worker in workers),
        evaluation_s=max(worker.evaluation_s for worker in workers),
        total_s=total_s,
        final=_final(workers),
        staleness_updates=_merged_staleness([worker.strategy_metrics.get(STALENESS) for worker in workers]),
        replica_drift=max(worker.replica_drift for worker in workers),
        replicas_equal=len({worker.parameter_digest for worker in workers}) == 1,
        num_parameters=workers[0].num_parameters,
        per_worker=[_worker_result(worker, values) for worker, values in zip(workers, times, strict=True)],
        curve=training_curve(workers),
        evaluations=evaluations_with_bytes(workers),
        target=cost_of_target(recipe.measure.target_accuracy, workers),
        resources=summarise_resources({worker.rank: worker.samples for worker in workers}),
        network=summarise_network(workers),
        split=analysis.files.split,
        stragglers=analysis.files.stragglers,
        timeline=analysis.files.timeline,
        links=analysis.links,
        skipped_steps=_num_skipped_steps(workers),
        skipped_samples=workers[0].skipped_samples,
    )


def combine(repeats: Sequence[RunResult]) -> Row:
    """Combine the repeats of one strategy into a row with median times and a confidence interval.

    All fields that are not combined come from the repeat with the median step time.
    """
    middle = sorted(repeats, key=lambda repeat: repeat.iteration_s.mean)[(len(repeats) - 1) // 2]
    means = [repeat.iteration_s.mean for repeat in repeats]

    fields = {name: getattr(middle, name) for name in RunResult.__struct_fields__}
    fields |= {
        "samples_per_s": statistics.median(repeat.samples_per_s for repeat in repeats),
        "train_s": statistics.median(repeat.train_s for repeat in repeats),
        "total_s": statistics.median(repeat.total_s for repeat in repeats),
        "iteration_s": _median_summary([repeat.iteration_s for repeat in repeats]),
        "replica_drift": summarise_if_complete(max, [repeat.replica_drift for repeat in repeats]),
        "replicas_equal": all(repeat.replicas_equal for repeat in repeats),
        "target": combine_targets([repeat.target for repeat in repeats]),
        "stragglers": stragglers_of_most_repeats(repeats),
    }
    return Row(
        **fields,
        iteration_mean_s_repeats=means,
        slowest_mean_s_repeats=[max(worker.iteration_s for worker in repeat.per_worker) for repeat in repeats],
        iteration_mean_s_interval95=interval95_of_times(means),
        repeats=len(repeats),
    )


def compare_rows(rows: Sequence[Row]) -> list[Row]:
    """Compare every row with the fastest strategy, with one worker, and with workers that never synchronise.

    Ratios to the fastest strategy and to one worker are computed from the times in the table. Intervals and verdicts
    come from paired repeats. Workers that never synchronise show a limit: a strategy that synchronises in every step
    waits for the slowest worker, so it cannot be faster than the slowest worker without synchronisation.
    """
    if not rows:
        return []
    fastest = fastest_of(rows)
    one_worker = next((row for row in rows if row.workers == 1), None)
    unsynchronised = [row for row in rows if row.workers > 1 and row.guarantee == "NONE"]
    limit = min(
        unsynchronised, key=lambda row: row.label != "none", default=None
    )  # prefer the strategy `none`, which does least
    return [_compare_row(row, fastest, one_worker, limit) for row in rows]


def _compare_row(row: Row, fastest: Row, one_worker: Row | None, limit: Row | None) -> Row:
    ours = row.iteration_mean_s_repeats
    ratio = paired_ratio(ours, fastest.iteration_mean_s_repeats)
    row = changed(
        row,
        versus_fastest=Versus(
            label=fastest.label,
            ratio=row.iteration_s.mean / fastest.iteration_s.mean,
            interval95=interval_of(ratio),
            verdict="fastest" if row is fastest else _verdict(ratio.is_different, ratio.value),
        ),
    )
    if one_worker is not None:
        speedup = one_worker.iteration_s.mean / row.iteration_s.mean
        row = changed(
            row,
            speedup=speedup,
            speedup_interval95=interval_of(paired_ratio(one_worker.iteration_mean_s_repeats, ours)),
            efficiency=speedup / row.workers,
        )
    if limit is not None and row.workers == limit.workers:
        slowest, limits = _slowest_repeats(row), _slowest_repeats(limit)
        limit_s = statistics.median(limits)
        versus = Versus(
            label=limit.label,
            limit_s=limit_s,
            ratio=statistics.median(slowest) / limit_s,
            interval95=interval_of(paired_ratio(slowest, limits)),
        )
        row = changed(row, versus_none=versus)
    return row


def fastest_of(rows: Sequence[Row]) -> Row:
    """Return the row of the fastest strategy. Baselines are considered only if there is no other row.

    The baselines are one worker, and workers that never synchronise. Exact and lossy strategies take precedence over
    the others, whose replicas differ during training. Rows that a study judged not accurate enough (`is_within`) are
    treated like baselines.
    """
    several = [row for row in rows if row.workers > 1 and row.guarantee != "NONE" and row.is_within is not False]
    rivals = [row for row in several if row.guarantee in ("EXACT", "LOSSY")] or several or rows
    return min(rivals, key=lambda row: row.iteration_s.mean)


def interval_of(ratio: Ratio) -> Interval | None:
    return None if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)


def _slowest_repeats(row: Row) -> list[float]:
    """Return the mean step time of the slowest worker in every compared repeat, in seconds."""
    means = row.iteration_mean_s_repeats
    return (row.slowest_mean_s_repeats or means)[
        : len(means)
    ]  # the first versions did not store the slowest workers' means


def _verdict(is_different: bool | None, ratio: float) -> str:
    if is_different is None:
        return "one repeat cannot tell"
    if not is_different:
        return "no difference"
    return "slower" if ratio > 1 else "faster"


def _median_summary(summaries: Sequence[TimeSummary]) -> TimeSummary:
    """Return the medians over repeats of the mean, p50, p90 and p95 of the step time.

    p90 is None if a repeat has no p90. The first versions of Paceline did not store it.
    """
    return TimeSummary(
        mean=statistics.median(one.mean for one in summaries),
        p50=statistics.median(one.p50 for one in summaries),
        p95=statistics.median(one.p95 for one in summaries),
        p90=summarise_if_complete(statistics.median, [one.p90 for one in summaries]),
    )


def _final(workers: Sequence[WorkerReport]) -> Final:
    """Return final losses and accuracies, averaged over workers.

    Training values are weighted by each worker's number of samples. Values on the test set are not weighted.
    """
    weights = [sum(worker.num_samples) for worker in workers]

    def weighted(values: Sequence[float]) -> float:
        return float(sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights))

    return Final(
        train_loss=summarise_if_complete(weighted, [worker.train_loss for worker in workers]),
        train_accuracy=summarise_if_complete(weighted, [worker.train_accuracy for worker in workers]),
        test_loss=summarise_if_complete(statistics.fmean, [worker.test_loss for worker in workers]),
        test_accuracy=summarise_if_complete(statistics.fmean, [worker.test_accuracy for worker in workers]),
    )


def _worker_result(worker: WorkerReport, times: list[float]) -> WorkerResult:
    figures = summary(times)
    return WorkerResult(
        rank=worker.rank,
        sent_bytes=worker.sent_bytes,
        received_bytes=worker.received_bytes,
        num_operations=worker.num_operations,
        train_loss=worker.train_loss,
        train_accuracy=worker.train_accuracy,
        test_loss=worker.test_loss,
        test_accuracy=worker.test_accuracy,
        test_loss_before_finish=worker.test_loss_before_finish,
        test_accuracy_before_finish=worker.test_accuracy_before_finish,
        train_s=worker.train_s,
        parameter_digest=worker.parameter_digest,
        strategy_metrics=worker.strategy_metrics,
        iteration_s=figures["mean"],
        iteration_p50_s=figures["p50"],
        iteration_p90_s=figures["p90"],
        iteration_p95_s=figures["p95"],
    )


def _num_skipped_steps(workers: Sequence[WorkerReport]) -> int | None:
    """Return the number of steps in which at least one worker skipped its update, or None if workers never skip."""
    if any(worker.skipped_steps is None for worker in workers):
        return None
    return len({step for worker in workers for step in worker.skipped_steps or ()})


def _merged_staleness(distributions: Sequence[dict[str, dict[str, int]] | None]) -> Staleness | None:
    """Merge the distributions of staleness that the workers measured, or return None if no worker did."""
    counts: dict[int, int] = {}
    for distribution in distributions:
        for value, count in (distribution or {"counts": {}})["counts"].items():
            counts[int(value)] = counts.get(int(value), 0) + count
    if not counts:
        return None
    mean = sum(value * count for value, count in counts.items()) / sum(counts.values())
    return Staleness(counts={str(value): counts[value] for value in sorted(counts)}, max=max(counts), mean=mean)


def _epoch_times(workers: Sequence[WorkerReport]) -> tuple[float | None, float | None]:
    """Return the slowest worker's mean seconds per epoch, first with and then without the time to load data.

    The time to load data is that of the worker that loads for longest. Both results are None if no epoch was completed.
    """
    length = workers[0].steps_per_epoch
    num_epochs = len(workers[0].iteration_s) // length
    if num_epochs == 0:
        return None, None
    whole = max(sum(worker.iteration_s[: num_epochs * length]) for worker in workers) / num_epochs
    data = max(sum(worker.data_s[: num_epochs * length]) for worker in workers) / num_epochs
    return whole, whole - data
