"""Tables that compare strategies or workers. Each column is declared once for all renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.present.numbers import (
    DASH,
    PLUS_MINUS,
    TIMES,
    bounded,
    counted,
    drift,
    factor,
    is_wide,
    megabytes,
    milliseconds,
    number,
    percentage,
    plus_minus,
    seconds,
    share,
    significant,
    time_interval,
    times,
    whole,
    without_first,
)
from paceline.present.page_parts import Column, Table, Visibility
from paceline.present.rows import ShownRow
from paceline.results import Row, RunResult, SplitMean, WorkerResult, WorkerSplit

TERMINAL, MARKDOWN, NOTEBOOK, HTML = Visibility.TERMINAL, Visibility.MARKDOWN, Visibility.NOTEBOOK, Visibility.HTML
NOWHERE = Visibility(0)
MS = "Step, ms"  # the heading over several columns
RowColumn = Column[ShownRow]

EXACT = ("exact: the same update as one worker with the whole batch",)
SPEEDUP_HELP = "over one worker with the same global batch"
ROLE_HELP = "time as a multiple of the fastest; baselines (one-worker and none) are not ranked"


def comparison_table(
    rows: Sequence[ShownRow], *, title: str = "", places: Visibility = Visibility.ALL
) -> Table[ShownRow]:
    """Return a table with a row for each strategy and a column for each measured quantity."""
    return Table(
        id="strategies",
        title=title,
        columns=_comparison_columns(rows),
        rows=rows,
        definitions=EXACT if any(row.workers > 1 and row.guarantee == "EXACT" for row in rows) else (),
        places=places,
        keys=range(len(rows)),
        best=_best(rows),
        full_names=[row.full_label for row in rows],
    )


def speed_table(rows: Sequence[ShownRow]) -> Table[ShownRow]:
    """Return a table of times, verdicts, speed-ups and throughput of each strategy, for the HTML page."""
    has_interval = any(row.iteration_mean_s_interval95 for row in rows)
    columns: list[RowColumn] = [
        _strategy_column(),
        _workers_column(HTML),
        Column("mean", lambda row: milliseconds(row.iteration_s.mean), group=MS),
        *([_interval_column(HTML)] if has_interval else []),
        Column("p50", lambda row: milliseconds(row.iteration_s.p50), group=MS),
        Column("p90", lambda row: milliseconds(row.iteration_s.p90), group=MS),
        Column("p95", lambda row: milliseconds(row.iteration_s.p95), group=MS),
        Column("Times the fastest", _ratio),
        Column("Verdict", _verdict, is_number=False),
        Column(
            "Speed-up over one worker",
            lambda row: bounded(row.speedup, row.speedup_interval95),
            help="with the same global batch",
        ),
        Column("Efficiency", lambda row: share(row.efficiency), help="speed-up over the number of workers"),
        Column("Samples/s", lambda row: whole(row.samples_per_s)),
    ]
    return Table(
        id="speed-table",
        columns=columns,
        rows=rows,
        notes=["In brackets: 95 % confidence intervals from interleaved repeats."] if has_interval else [],
        places=HTML,
        keys=range(len(rows)),
        best=_best(rows),
        full_names=[row.full_label for row in rows],
    )


def worker_table(row: RunResult, *, title: str = "", places: Visibility = Visibility.ALL) -> Table[WorkerResult]:
    """Return a table with one row for each worker of a run."""
    splits = {one.rank: one for one in (row.split.per_worker if row.split is not None else [])}
    equal = ""
    if row.workers > 1:
        equal = ", parameters equal on all" if row.replicas_equal else ", parameters differ"
    return Table(
        id="workers",
        title=title,
        columns=_worker_columns(splits),
        rows=row.per_worker,
        places=places,
        summary=f"{counted(row.workers, 'worker')}{equal}",
    )


def _comparison_columns(rows: Sequence[ShownRow]) -> list[RowColumn]:
    target = next((row.target.accuracy for row in rows if row.target is not None), None)
    split_places = (TERMINAL if any(row.split is not None for row in rows) else NOWHERE) | MARKDOWN | NOTEBOOK
    columns: list[RowColumn] = [
        _strategy_column(),
        _workers_column(MARKDOWN | NOTEBOOK | HTML),
        Column(
            "mean",
            lambda row: milliseconds(row.iteration_s.mean),
            group=MS,
            short="ms/step",
            help=f"mean over workers and steps{without_first(rows[0].warmup_steps)}",
        ),
        *_spread_columns(rows),
        Column("To fastest", _to_fastest, places=MARKDOWN | NOTEBOOK | HTML, help=ROLE_HELP),
        Column(
            "Speed-up",
            lambda row: factor(row.speedup),
            short="speed-up",
            places=TERMINAL | MARKDOWN if any(row.speedup is not None for row in rows) else NOWHERE,
            help=SPEEDUP_HELP,
        ),
        Column(
            "Overlap",
            lambda row: _overlap(_mean_split(row)),
            short="overlap",
            importance=40,
            places=split_places,
            help="communication hidden under compute",
        ),
        Column(
            "Waiting",
            lambda row: _waiting(_mean_split(row)),
            short="waiting",
            places=split_places,
            help="share of a step spent waiting for a slower peer",
        ),
        Column(
            "Samples/s",
            lambda row: whole(row.samples_per_s),
            short="samples/s",
            importance=20,
            places=TERMINAL | NOTEBOOK,
        ),
        _time_column(target),
        Column(
            "train",
            lambda row: number(row.final.train_loss, 3),
            group="Loss",
            short="loss",
            importance=60,
            places=TERMINAL | MARKDOWN | HTML,
            help="training loss at the end",
        ),
        Column("test", lambda row: number(row.final.test_loss, 3), group="Loss", places=NOTEBOOK | HTML),
        Column("train", lambda row: percentage(row.final.train_accuracy), group="Accuracy", places=HTML),
        Column(
            "test",
            lambda row: percentage(row.final.test_accuracy),
            group="Accuracy",
            short="test",
            help="test accuracy at the end",
        ),
        Column(
            "Replica drift",
            lambda row: drift(row.replica_drift),
            short="drift",
            importance=30,
            places=TERMINAL | NOTEBOOK | HTML,
            help="distance of replicas from their mean",
        ),
        Column("Sent, MB", _most_sent, short="MB sent", help="by the worker that sent most"),
        Column("Guarantee", _guarantee, is_number=False, places=MARKDOWN | NOTEBOOK | HTML),
        Column("all", lambda row: seconds(row.epoch_s), group="Epoch, s", places=HTML),
        Column("without data", lambda row: seconds(row.epoch_without_data_s), group="Epoch, s", places=HTML),
    ]
    if len({row.comm for row in rows}) > 1:
        columns.append(Column("Comm", lambda row: row.comm, is_number=False, places=HTML | MARKDOWN))
    return columns


def _strategy_column() -> RowColumn:
    return Column("Strategy", lambda row: row.label, short="strategy", is_number=False)


def _workers_column(places: Visibility) -> RowColumn:
    return Column("Workers", _processes, short="workers", places=places)


def _spread_columns(rows: Sequence[ShownRow]) -> list[RowColumn]:
    """Return the columns of the 95 % interval of the step time.

    With a single repeat there is no interval; then a terminal shows the 95th percentile of the step times instead.
    """
    times_s = [(row.iteration_mean_s_interval95, row.iteration_s.mean) for row in rows]
    if not any(bounds for bounds, _ in times_s):
        p95 = Column[ShownRow](
            "p95",
            lambda row: milliseconds(row.iteration_s.p95),
            importance=50,
            help="95th percentile of the steps' times",
            places=TERMINAL,
        )
        return [p95]
    limit = f" (too wide: over {PLUS_MINUS}50 %)" if any(b and is_wide(b, mean) for b, mean in times_s) else ""
    half = Column[ShownRow](
        "95 %",
        lambda row: plus_minus(row.iteration_mean_s_interval95, row.iteration_s.mean),
        importance=50,
        help=f"half of the 95 % confidence interval{limit}",
        places=TERMINAL,
    )
    return [half, _interval_column(MARKDOWN)]


def _interval_column(places: Visibility) -> RowColumn:
    return Column("95 % interval", lambda row: time_interval(row.iteration_mean_s_interval95), group=MS, places=places)


def _time_column(target: float | None) -> RowColumn:
    """Return the column of the training time, or of the time until the target accuracy if a target was set."""
    if target is not None:
        return Column(f"Train to {percentage(target)}, s", _time_to_target, short=f"s to {target:.4g}")
    return Column("Train, s", lambda row: seconds(row.train_s), short="train s", importance=10, places=TERMINAL | HTML)


def _worker_columns(splits: Mapping[int, WorkerSplit]) -> list[Column[WorkerResult]]:
    details = TERMINAL | HTML
    split_places = (details if splits else NOWHERE) | NOTEBOOK
    return [
        Column("Rank", lambda w: str(w.rank), short="worker"),
        Column("mean", lambda w: milliseconds(w.iteration_s), group=MS, short="ms/step"),
        Column("p50", lambda w: milliseconds(w.iteration_p50_s), group=MS, short="p50", importance=30, places=details),
        Column("p90", lambda w: milliseconds(w.iteration_p90_s), group=MS, short="p90", importance=10, places=details),
        Column("p95", lambda w: milliseconds(w.iteration_p95_s), group=MS, short="p95", places=details),
        Column("Overlap", lambda w: _overlap(splits.get(w.rank)), short="overlap", importance=60, places=split_places),
        Column("Waiting", lambda w: _waiting(splits.get(w.rank)), short="waiting", places=split_places),
        Column(
            "train", lambda w: number(w.train_loss), group="Loss", short="train loss", importance=50, places=details
        ),
        Column("train", lambda w: percentage(w.train_accuracy), group="Accuracy", short="train", places=details),
        Column("test", lambda w: number(w.test_loss), group="Loss", short="test loss", importance=40),
        Column("test", lambda w: percentage(w.test_accuracy), group="Accuracy", short="test"),
        Column("Sent, MB", lambda w: megabytes(w.sent_bytes), short="MB sent"),
        Column("Received, MB", lambda w: megabytes(w.received_bytes), places=HTML),
        Column(
            "Parameters",
            lambda w: w.parameter_digest[:8] or DASH,
            short="parameters",
            is_number=False,
            importance=20,
            places=details,
        ),
    ]


def _time_to_target(row: ShownRow) -> str:
    if row.target is None:
        return DASH
    return seconds(row.target.train_s) if row.target.reached else "never"


def _overlap(split: SplitMean | None) -> str:
    """Format the share of the communication time that overlaps with computing."""
    return DASH if split is None else share(split.overlap_fraction)


def _waiting(split: SplitMean | None) -> str:
    """Format the share of the time of a step that is spent waiting for other workers."""
    return DASH if split is None or not split.step_s else share(split.waiting_s / split.step_s)


def _most_sent(row: RunResult) -> str:
    return megabytes(max((worker.sent_bytes for worker in row.per_worker), default=None))


def _mean_split(row: Row) -> SplitMean | None:
    return row.split.mean if row.split is not None else None


def _processes(row: Row) -> str:
    return f"{row.workers} + {counted(row.servers, 'server')}" if row.servers else str(row.workers)


def _to_fastest(row: ShownRow) -> str:
    versus = row.versus_fastest
    if versus is None:
        return DASH
    if row.role:  # the row does not compete to be the fastest
        return row.role
    verdict = _verdict(row)
    return verdict if versus.verdict in ("fastest", "no difference") else f"{times(versus.ratio)} {TIMES}"


def _verdict(row: ShownRow) -> str:
    """Return the verdict of a row against the fastest, or why the row does not compete, such as "one worker"."""
    verdict = row.versus_fastest.verdict if row.versus_fastest else None
    if verdict == "fastest" and row.repeats == 1:
        verdict = "fastest in one repeat"
    return row.role or verdict or DASH


def _ratio(row: ShownRow) -> str:
    return DASH if row.versus_fastest is None else bounded(row.versus_fastest.ratio, row.versus_fastest.interval95)


def _guarantee(row: Row) -> str:
    staleness, guarantee = row.staleness_updates, row.guarantee.lower()
    if staleness is None:
        return guarantee
    return f"{guarantee} (mean {significant(staleness.mean)}, max {staleness.max} updates)"


def _best(rows: Sequence[ShownRow]) -> int | None:
    """Return the index of the fastest row, or None if there is only one row or rows were not compared."""
    if len(rows) < 2:
        return None
    verdicts = [row.versus_fastest.verdict if row.versus_fastest else None for row in rows]
    return verdicts.index("fastest") if "fastest" in verdicts else None
