"""Live progress: one bar per strategy, loss and accuracy moving."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from paceline.cli.parts.view import DASH, number, percent
from paceline.study.entries import Entry
from paceline.study.results import Result
from paceline.train.context import Event


class Bars:
    """Follows a study. Use it as a context manager."""

    def __init__(self, entries: list[Entry], *, repeats: int, total_steps: int, console: Console) -> None:
        self._repeats, self._total_steps = repeats, total_steps
        self._progress = Progress(
            TextColumn("{task.fields[label]}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[where]}", justify="right"),
            TextColumn("rank 0: loss {task.fields[loss]}"),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            entry.label: self._progress.add_task(
                "", total=repeats * total_steps, start=False, label=entry.label, where="", loss=DASH, accuracy=DASH
            )
            for entry in entries
        }

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._progress.tasks:
            if not task.started:  # it would be left looking complete
                self._progress.update(task.id, visible=False)
        self._progress.stop()

    def started(self, entry: Entry, repeat: int) -> None:
        self._progress.start_task(self._tasks[entry.label])
        self._update(entry, repeat, 0, where=f"starting {entry.num_processes} processes" if repeat == 0 else "")
        self._repeat = repeat

    def event(self, entry: Entry, event: Event) -> None:
        kind = event["kind"]
        if kind == "warning":
            self._progress.console.print(f"{entry.label}: {event['text']}", style="yellow", markup=False)
            return
        if kind == "log":
            self._progress.console.print(
                f"{entry.label}: epoch {event['epoch']}, iteration {event['iteration']}, "
                f"loss {number(event['loss'])} (rank 0)",
                markup=False,
            )
        where = f"{event['step']}/{event['total_steps']}"
        if self._repeats > 1:
            where = f"repeat {self._repeat + 1}, {where}"
        self._update(
            entry,
            self._repeat,
            event["step"],
            where=where,
            loss=number(event["loss"]),
            accuracy=percent(event["accuracy"]),
        )

    def done(self, entry: Entry, repeat: int, result: Result) -> None:
        where = f"{result['steps']} steps" if self._repeats == 1 else f"{repeat + 1} x {result['steps']} steps"
        self._update(entry, repeat, self._total_steps, where=where)
        task = self._tasks[entry.label]
        if repeat == self._repeats - 1:
            self._progress.stop_task(task)

    def _update(self, entry: Entry, repeat: int, step: int, **fields: Any) -> None:
        task = self._tasks[entry.label]
        self._progress.update(task, completed=repeat * self._total_steps + step, **fields)
