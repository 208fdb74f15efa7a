"""The columns of rows and of workers, each declared once for all renderers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.present.model import Column, Table, Visibility
from paceline.present.numbers import (
    DASH,
    TIMES,
    bounded,
    counted,
    drift,
    factor,
    megabytes,
    milliseconds,
    number,
    percent,
    plus_minus,
    seconds,
    share,
    significant,
    time_interval,
    times,
    whole,
)
from paceline.present.rows import ShownRow
from paceline.results import Row, RunResult, SplitMean

TERMINAL, MARKDOWN, NOTEBOOK, HTML = Visibility.TERMINAL, Visibility.MARKDOWN, Visibility.NOTEBOOK, Visibility.HTML
RowColumn = Column[ShownRow]

STEP_HELP = "mean over workers, first {} dropped"
OVERLAP_HELP = "communication hidden under compute"
WAITING_HELP = "share of a step spent waiting for a slower peer"


def comparison_table(
    rows: Sequence[ShownRow], *, title: str = "", places: Visibility = Visibility.ALL
) -> Table[ShownRow]:
    """One row per strategy."""
    return Table(
        id="strategies",
        title=title,
        columns=comparison_columns(rows),
        rows=rows,
        places=places,
        keys=range(len(rows)),
        best=_best(rows),
        full_names=[row.full_label for row in rows],
    )


def comparison_columns(rows: Sequence[ShownRow]) -> list[RowColumn]:
    has_interval = any(row.iteration_mean_s_interval95 for row in rows)
    has_split = any(row.split is not None for row in rows)
    aim = next((row.target.accuracy for row in rows if row.target is not None), None)
    step_help = STEP_HELP.format(rows[0].warmup_steps)
    role_help = "limit: workers that never synchronise; it and one worker do not compete"
    in_terminal = TERMINAL if has_split else Visibility(0)
    columns: list[RowColumn] = [
        strategy_column(),
        workers_column(MARKDOWN | NOTEBOOK | HTML),
        Column(
            title="mean",
            group="Iteration, ms",
            short="ms/step",
            text=lambda row: milliseconds(row.iteration_s.mean),
            help=step_help,
        ),
        *_scatter_columns(has_interval=has_interval),
        Column(title="To fastest", text=_to_fastest, places=MARKDOWN | NOTEBOOK | HTML, help=role_help),
        Column(
            title="Speed-up",
            short="speed-up",
            text=lambda row: factor(row.speedup),
            places=TERMINAL | MARKDOWN if any(row.speedup is not None for row in rows) else Visibility(0),
        ),
        Column(
            title="Overlap",
            short="overlap",
            text=lambda row: overlap(_mean_split(row)),
            importance=40,
            places=in_terminal | MARKDOWN | NOTEBOOK,
            help=OVERLAP_HELP,
        ),
        Column(
            title="Waiting",
            short="waiting",
            text=lambda row: waiting(_mean_split(row)),
            places=in_terminal | MARKDOWN | NOTEBOOK,
            help=WAITING_HELP,
        ),
        Column(
            title="Samples/s",
            short="samples/s",
            text=lambda row: whole(row.samples_per_s),
            importance=20,
            places=TERMINAL | NOTEBOOK,
        ),
        _time_column(aim),
        Column(
            title="train",
            group="Loss",
            short="loss",
            text=lambda row: number(row.final.train_loss, 3),
            importance=60,
            places=TERMINAL | MARKDOWN | HTML,
        ),
        Column(
            title="test",
            group="Loss",
            text=lambda row: number(row.final.test_loss, 3),
            places=NOTEBOOK | HTML,
        ),
        Column(title="train", group="Accuracy", text=lambda row: percent(row.final.train_accuracy), places=HTML),
        Column(
            title="test",
            group="Accuracy",
            short="test",
            text=lambda row: percent(row.final.test_accuracy),
            help="accuracy",
        ),
        Column(
            title="Replica drift",
            short="drift",
            text=lambda row: drift(row.replica_drift),
            importance=30,
            places=TERMINAL | NOTEBOOK | HTML,
            help="distance of replicas from their mean",
        ),
        Column(title="Sent, MB", short="MB sent", text=most_sent, help="by the worker that sent most"),
        Column(title="Guarantee", text=_guarantee, is_number=False, places=MARKDOWN | NOTEBOOK | HTML),
        Column(title="all", group="Epoch, s", text=lambda row: seconds(row.epoch_s), places=HTML),
        Column(title="without data", group="Epoch, s", text=lambda row: seconds(row.epoch_without_data_s), places=HTML),
    ]
    if len({row.comm for row in rows}) > 1:
        columns.append(Column(title="Comm", text=lambda row: row.comm, is_number=False, places=HTML | MARKDOWN))
    return columns


def strategy_column() -> RowColumn:
    return Column(title="Strategy", short="strategy", text=lambda row: row.label, is_number=False)


def workers_column(places: Visibility) -> RowColumn:
    return Column(title="Workers", short="workers", text=_processes, places=places)


def _scatter_columns(*, has_interval: bool) -> list[RowColumn]:
    """The interval, or the 95th percentile where one repeat gives none."""
    in_terminal, otherwise = (TERMINAL, Visibility(0)) if has_interval else (Visibility(0), TERMINAL)
    return [
        Column(
            title="95 %",
            text=lambda row: plus_minus(row.iteration_mean_s_interval95, row.iteration_s.mean),
            importance=50,
            places=in_terminal,
        ),
        Column(
            title="95 % interval",
            group="Iteration, ms",
            text=lambda row: time_interval(row.iteration_mean_s_interval95),
            places=MARKDOWN,
        ),
        Column(title="p95", text=lambda row: milliseconds(row.iteration_s.p95), importance=50, places=otherwise),
    ]


def _time_column(aim: float | None) -> RowColumn:
    """Seconds of training, or until the target accuracy where one was set."""
    if aim is None:
        return Column(
            title="Train, s",
            short="train s",
            text=lambda row: seconds(row.train_s),
            importance=10,
            places=TERMINAL | HTML,
        )
    return Column(title=f"Train to {percent(aim)}, s", short=f"s to {aim:.4g}", text=_time_to_target)


def _time_to_target(row: ShownRow) -> str:
    if row.target is None:
        return DASH
    return seconds(row.target.train_s) if row.target.reached else "never"


def speed_table(rows: Sequence[ShownRow]) -> Table[ShownRow]:
    """Times, verdicts, speed-ups and throughput, for the HTML page."""
    columns: list[RowColumn] = [
        strategy_column(),
        workers_column(HTML),
        *(_iteration(name) for name in ("mean", "95 % interval", "p50", "p90", "p95")),
        Column(title="Times the fastest", text=_ratio),
        Column(title="Verdict", text=_verdict, is_number=False),
        Column(
            title="Speed-up over one worker",
            text=lambda row: bounded(row.speedup, row.speedup_interval95),
            help="with the same global batch",
        ),
        Column(title="Efficiency", text=lambda row: share(row.efficiency), help="speed-up over the number of workers"),
        Column(title="Samples/s", text=lambda row: whole(row.samples_per_s)),
    ]
    return Table(
        id="speed-table",
        columns=columns,
        rows=rows,
        notes=["In brackets: 95 % confidence intervals from interleaved repeats."],
        places=HTML,
        keys=range(len(rows)),
        best=_best(rows),
        full_names=[row.full_label for row in rows],
    )


def _iteration(name: str) -> RowColumn:
    texts: dict[str, Callable[[ShownRow], str]] = {
        "mean": lambda row: milliseconds(row.iteration_s.mean),
        "95 % interval": lambda row: time_interval(row.iteration_mean_s_interval95),
        "p50": lambda row: milliseconds(row.iteration_s.p50),
        "p90": lambda row: milliseconds(row.iteration_s.p90),
        "p95": lambda row: milliseconds(row.iteration_s.p95),
    }
    return Column(title=name, group="Iteration, ms", text=texts[name])


def overlap(split: SplitMean | None) -> str:
    """The share of its communication that a worker hides."""
    return DASH if split is None else share(split.overlap_fraction)


def waiting(split: SplitMean | None) -> str:
    """The share of a step that a worker waits for others."""
    return DASH if split is None or not split.step_s else share(split.waiting_s / split.step_s)


def most_sent(row: RunResult) -> str:
    return megabytes(max((worker.sent_bytes for worker in row.per_worker), default=None))


def _mean_split(row: Row) -> SplitMean | None:
    return row.split.mean if row.split is not None else None


def _processes(row: Row) -> str:
    return f"{row.workers} + {counted(row.servers, 'server')}" if row.servers else str(row.workers)


def _to_fastest(row: ShownRow) -> str:
    versus = row.versus_fastest
    if versus is None:
        return DASH
    if row.role:  # a baseline does not compete
        return row.role
    return versus.verdict if versus.verdict in ("fastest", "no difference") else f"{times(versus.ratio)} {TIMES}"


def _verdict(row: ShownRow) -> str:
    """The verdict against the fastest; baselines return their role."""
    return row.role or (row.versus_fastest.verdict if row.versus_fastest else None) or DASH


def _ratio(row: ShownRow) -> str:
    return DASH if row.versus_fastest is None else bounded(row.versus_fastest.ratio, row.versus_fastest.interval95)


def _guarantee(row: Row) -> str:
    late, words = row.staleness_updates, row.guarantee.lower()
    return f"{words} (mean {significant(late.mean)}, max {late.max} updates)" if late is not None else words


def _best(rows: Sequence[ShownRow]) -> int | None:
    if len(rows) < 2:
        return None
    verdicts = [row.versus_fastest.verdict if row.versus_fastest else None for row in rows]
    return verdicts.index("fastest") if "fastest" in verdicts else None
