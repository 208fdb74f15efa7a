"""The page of a run or study without a result: the steps that workers had written until it ended."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.errors import UsageError
from paceline.present import conditions
from paceline.present.comparison_page import frame
from paceline.present.model import Column, Finding, Page, Presenter, Table
from paceline.present.numbers import milliseconds, number
from paceline.present.pages import PageContent
from paceline.runs import run_folders
from paceline.worker_files import worker_files, worker_lines


@dataclass(frozen=True)
class Started:
    """The lines of one worker."""

    run: str
    rank: int
    steps: int
    iteration_s: float
    loss: float | None


class UnfinishedPresenter(Presenter):
    name: ClassVar[str] = "unfinished"

    def page(self, material: PageContent) -> Page:
        source = material.sources[0]
        rows, damaged = [], []
        for folder in run_folders(source.folder):
            for rank, file in worker_files(folder).items():
                try:
                    rows += _started(folder, rank, file)
                except UsageError as error:
                    damaged.append(Finding(f"{error}.", kind="caution"))
        cautions = [*damaged, *conditions.interventions([source.recipe_values], [])]
        if not rows:
            return Page(**frame(material), findings=[Finding("Nothing was measured."), *cautions])
        shown = source.name if source.kind == "run" else "RUN"
        hint = f"`paceline trace {shown}` and `paceline export {shown} --to csv` show more of it."
        return Page(
            **frame(material),
            tables=[
                Table(
                    title="No result. Steps that workers had written until then:",
                    columns=_columns(is_run=source.kind == "run"),
                    rows=rows,
                )
            ],
            findings=[Finding(hint), *cautions],
        )


def _columns(*, is_run: bool) -> list[Column[Started]]:
    columns: list[Column[Started]] = [
        Column(title="Run", short="run", text=lambda one: one.run, is_number=False),
        Column(title="Worker", short="worker", text=lambda one: str(one.rank)),
        Column(title="Steps", short="steps", text=lambda one: str(one.steps)),
        Column(title="Iteration, ms", short="ms/step", text=lambda one: milliseconds(one.iteration_s)),
        Column(title="Last loss", short="last loss", text=lambda one: number(one.loss)),
    ]
    return columns[1:] if is_run else columns


def _started(folder: Path, rank: int, file: Path) -> list[Started]:
    """The steps of a worker; empty where it finished none."""
    times: list[float] = []
    loss: float | None = None
    for line in worker_lines(file):
        if line["kind"] == "step":
            times.append(line["iteration_s"])
            loss = line.get("loss")
    return [Started(folder.name, rank, len(times), statistics.fmean(times), loss)] if times else []
