"""The page of one run, and the page of a run or study that ended without a result."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paceline.errors import UsageError
from paceline.present import comparison_findings, conditions
from paceline.present.columns import comparison_table, worker_table
from paceline.present.comparison_page import comparison_page, frame
from paceline.present.numbers import (
    counted,
    milliseconds,
    number,
    percentage,
    seconds,
    share,
    significant,
    whole,
    without_first,
)
from paceline.present.page_parts import Column, Fact, Facts, Finding, Page, Presenter, Table, Visibility
from paceline.present.pages import PageContent
from paceline.present.styles import PART_NAMES
from paceline.results import RUNNING, RunResult
from paceline.runs import run_folders
from paceline.worker_files import worker_files, worker_lines

MAX_STALENESS_VALUES = 8  # further staleness values are not listed
_PARTS = ("compute", "communication", "overlap", "waiting", "data", "rest")


class RunPresenter(Presenter):
    name: ClassVar[str] = "run"

    def page(self, material: PageContent) -> Page:
        row = material.rows[0]
        places = Visibility.TERMINAL | Visibility.NOTEBOOK
        tables: list[Table[Any]] = [
            worker_table(row, places=places),
            comparison_table(material.rows, places=Visibility.HTML | Visibility.MARKDOWN),
        ]
        # A terminal shows the facts instead of the headline.
        headline = dataclasses.replace(
            comparison_findings.headline(material.rows), places=Visibility.ALL & ~Visibility.TERMINAL
        )
        facts = [Facts(run_facts(row), places=Visibility.TERMINAL)]
        return comparison_page(material, first=[headline], tables=tables, facts=facts)


def run_facts(run: RunResult) -> list[Fact]:
    """Return the facts that a terminal lists below the table of workers, such as throughput."""
    time, final = run.iteration_s, run.final
    facts = [
        (
            "time per step",
            f"mean {milliseconds(time.mean)} ms, p50 {milliseconds(time.p50)}, p90 {milliseconds(time.p90)}, p95 "
            f"{milliseconds(time.p95)} ({counted(run.timed_steps, 'step')}{without_first(run.warmup_steps)})",
        ),
        ("throughput", f"{whole(run.samples_per_s)} samples/s"),
    ]
    if run.epoch_s is not None:
        without_s = seconds(run.epoch_without_data_s, 3)
        facts.append(("epoch", f"{seconds(run.epoch_s, 3)} s, {without_s} s without loading data"))
    if run.split is not None and run.split.mean.step_s:
        mean = run.split.mean
        parts = [f"{PART_NAMES[part]} {share(getattr(mean, f'{part}_s') / mean.step_s)}" for part in _PARTS]
        facts.append(("parts of a step", ", ".join(parts)))
    facts += [
        (
            "training",
            f"{seconds(run.train_s)} s; evaluation {seconds(run.evaluation_s)} s; total {seconds(run.total_s)} s with "
            "start-up",
        ),
        ("last epoch", f"loss {number(final.train_loss)}, accuracy {percentage(final.train_accuracy)}"),
        ("test set", f"loss {number(final.test_loss)}, accuracy {percentage(final.test_accuracy)}"),
    ]
    if run.skipped_steps:
        facts.append(("skipped", f"{run.skipped_steps} of {counted(run.steps, 'step')}: gradients were not finite"))
    if run.skipped_samples:
        facts.append(("left out", f"{counted(run.skipped_samples, 'sample')} that cannot be read"))
    if run.servers:
        facts.append(("servers", f"{run.servers}, in addition to the workers"))
    staleness = run.staleness_updates
    if staleness is not None:
        total = sum(staleness.counts.values())
        first_values = list(staleness.counts.items())[:MAX_STALENESS_VALUES]
        shares = ", ".join(f"{value}: {percentage(count / total)}" for value, count in first_values)
        more = ", ..." if len(staleness.counts) > MAX_STALENESS_VALUES else ""
        text = f"mean {number(staleness.mean, 3)}, max {staleness.max} updates ({shares}{more})"
        facts.append(("staleness", text))
    facts.append(
        (
            "replicas",
            f"drift {significant(run.replica_drift)}, guarantee {run.guarantee.lower()}; BatchNorm statistics "
            f"{run.batchnorm}",
        )
    )
    return facts


@dataclass(frozen=True)
class WorkerProgress:
    """Progress of a worker in an unfinished run: number of steps, mean time per step, last loss."""

    run: str
    rank: int
    steps: int
    iteration_s: float
    loss: float | None


class UnfinishedPresenter(Presenter):
    """Makes the page of a run or study without a result, with the steps that workers recorded before it ended."""

    name: ClassVar[str] = "unfinished"

    def page(self, material: PageContent) -> Page:
        source = material.sources[0]
        rows, damaged = [], []
        for folder in run_folders(source.folder):
            for rank, file in worker_files(folder).items():
                try:
                    rows += _progress_of(folder, rank, file)
                except UsageError as error:
                    damaged.append(Finding(f"{error}.", kind="caution"))
        cautions = [*damaged, *conditions.interventions([source.recipe_values], [])]
        if not rows:
            nothing = "It is running and has no result yet." if source.status == RUNNING else "Nothing was measured."
            return Page(**frame(material), findings=[Finding(nothing), *cautions])
        name = source.name if source.kind == "run" else "RUN"
        hint = f"`paceline trace {name}` and `paceline export {name} --to csv` show more."
        return Page(
            **frame(material),
            tables=[
                Table(
                    title="No result. Steps that workers recorded before the end:",
                    columns=_progress_columns(is_run=source.kind == "run"),
                    rows=rows,
                )
            ],
            findings=[Finding(hint), *cautions],
        )


def _progress_columns(*, is_run: bool) -> list[Column[WorkerProgress]]:
    columns: list[Column[WorkerProgress]] = [
        Column(title="Run", short="run", text=lambda row: row.run, is_number=False),
        Column(title="Worker", short="worker", text=lambda row: str(row.rank)),
        Column(title="Steps", short="steps", text=lambda row: str(row.steps)),
        Column(title="Step, ms", short="ms/step", text=lambda row: milliseconds(row.iteration_s)),
        Column(title="Last loss", short="last loss", text=lambda row: number(row.loss)),
    ]
    return columns[1:] if is_run else columns


def _progress_of(folder: Path, rank: int, file: Path) -> list[WorkerProgress]:
    """Return a list with the progress recorded in a worker's file, or an empty list if the file has no steps."""
    times: list[float] = []
    loss: float | None = None
    for line in worker_lines(file):
        if line["kind"] == "step":
            times.append(line["iteration_s"])
            loss = line.get("loss")
    return [WorkerProgress(folder.name, rank, len(times), statistics.fmean(times), loss)] if times else []
