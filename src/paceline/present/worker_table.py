"""The table of the workers of a run."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.present.columns import HTML, NOTEBOOK, TERMINAL, overlap, waiting
from paceline.present.model import Column, Table, Visibility
from paceline.present.numbers import DASH, counted, megabytes, milliseconds, number, percent
from paceline.results import RunResult, WorkerResult, WorkerSplit


@dataclass(frozen=True)
class WorkerRow:
    """One worker of a run with the split of its time."""

    worker: WorkerResult
    split: WorkerSplit | None


def worker_table(row: RunResult, *, title: str = "", places: Visibility = Visibility.ALL) -> Table[WorkerRow]:
    """One row per worker."""
    splits = {one.rank: one for one in (row.split.per_worker if row.split is not None else [])}
    columns: list[Column[WorkerRow]] = [
        Column(title="Rank", short="worker", text=lambda one: str(one.worker.rank)),
        Column(
            title="mean",
            group="Iteration, ms",
            short="ms/step",
            text=lambda one: milliseconds(one.worker.iteration_s),
        ),
        Column(
            title="p50",
            group="Iteration, ms",
            short="p50",
            text=lambda one: milliseconds(one.worker.iteration_p50_s),
            importance=30,
            places=TERMINAL | HTML,
        ),
        Column(
            title="p90",
            group="Iteration, ms",
            short="p90",
            text=lambda one: milliseconds(one.worker.iteration_p90_s),  # the first versions stored none
            importance=10,
            places=TERMINAL | HTML,
        ),
        Column(
            title="p95",
            group="Iteration, ms",
            short="p95",
            text=lambda one: milliseconds(one.worker.iteration_p95_s),
            places=TERMINAL | HTML,
        ),
        Column(
            title="Overlap",
            short="overlap",
            text=lambda one: overlap(one.split),
            importance=60,
            places=(TERMINAL | HTML if splits else Visibility(0)) | NOTEBOOK,
        ),
        Column(
            title="Waiting",
            short="waiting",
            text=lambda one: waiting(one.split),
            places=(TERMINAL | HTML if splits else Visibility(0)) | NOTEBOOK,
        ),
        Column(
            title="train",
            group="Loss",
            short="train loss",
            text=lambda one: number(one.worker.train_loss),
            importance=50,
            places=TERMINAL | HTML,
        ),
        Column(
            title="train",
            group="Accuracy",
            short="train",
            text=lambda one: percent(one.worker.train_accuracy),
            places=TERMINAL | HTML,
        ),
        Column(
            title="test",
            group="Loss",
            short="test loss",
            text=lambda one: number(one.worker.test_loss),
            importance=40,
        ),
        Column(title="test", group="Accuracy", short="test", text=lambda one: percent(one.worker.test_accuracy)),
        Column(title="Sent, MB", short="MB sent", text=lambda one: megabytes(one.worker.sent_bytes)),
        Column(title="Received, MB", text=lambda one: megabytes(one.worker.received_bytes), places=HTML),
        Column(
            title="Parameters",
            short="parameters",
            text=lambda one: one.worker.parameter_digest[:8] or DASH,
            is_number=False,
            importance=20,
            places=TERMINAL | HTML,
        ),
    ]
    equal = ""
    if row.workers > 1:
        equal = ", parameters equal on all" if row.replicas_equal else ", parameters differ"
    return Table(
        id="workers",
        title=title,
        columns=columns,
        rows=[WorkerRow(worker, splits.get(worker.rank)) for worker in row.per_worker],
        places=places,
        summary=f"{counted(row.workers, 'worker')}{equal}",
    )
