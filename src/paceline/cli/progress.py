"""Live progress: in a terminal a bar per strategy and a line per worker; elsewhere a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from paceline.cli.worker_lines import WorkerStatusLines
from paceline.present.numbers import DASH, number, percent
from paceline.results import RunResult, StudyResult
from paceline.study.base import Cell, StudyListener
from paceline.study.entries import Entry
from paceline.train.context import Event

LINE_EVERY_S = 10.0  # between two plain lines
DRAW_HZ = 4  # drawing competes with workers for a core
_LABEL = Column(max_width=30, no_wrap=True, overflow="ellipsis")  # of 100 columns


class StudyProgress(StudyListener):
    """The progress of a study, one view per stage. Use it as a context manager."""

    def __init__(
        self, console: Console, *, has_bar_per_entry: bool, on_stage: Callable[[Any], str] | None = None
    ) -> None:
        self._console, self._has_bar_per_entry, self._on_stage = console, has_bar_per_entry, on_stage
        self._view: StrategyBars | PointsBar | None = None

    def __enter__(self) -> StudyProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def planned(self, cells: Sequence[Cell]) -> None:
        self._close()
        if not cells:
            return
        repeats = max(cell.repeat for cell in cells) + 1
        is_screen = self._console.is_terminal and not self._console.quiet
        if is_screen and not self._has_bar_per_entry:
            self._view = PointsBar(len(cells), repeats, self._console)
        else:
            entries = {cell.progress_entry.label: cell.progress_entry for cell in cells}
            self._view = StrategyBars(list(entries.values()), repeats=repeats, console=self._console)
        self._view.__enter__()

    def started(self, entry: Entry, repeat: int) -> None:
        if self._view is not None:
            self._view.started(entry, repeat)

    def event(self, entry: Entry, event: Event) -> None:
        if self._view is not None:
            self._view.event(entry, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        if self._view is not None:
            self._view.done(entry, repeat, result)

    def stage_done(self, result: StudyResult) -> None:
        self._close()
        line = self._on_stage(result) if self._on_stage is not None else ""
        if line:
            self._console.print(line, markup=False)

    def _close(self) -> None:
        if self._view is not None:
            self._view.__exit__(None, None, None)
        self._view = None


class StrategyBars(StudyListener):
    """A bar per strategy. Use it as a context manager."""

    def __init__(self, entries: Sequence[Entry], *, repeats: int, console: Console) -> None:
        self._view: _Screen | _Lines
        if console.is_terminal and not console.quiet:
            self._view = _Screen(entries, repeats, console)
        else:
            self._view = _Lines(repeats, console)

    def __enter__(self) -> StrategyBars:
        self._view.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.close()

    def started(self, entry: Entry, repeat: int) -> None:
        self._view.started(entry, repeat)

    def event(self, entry: Entry, event: Event) -> None:
        kind = event["kind"]
        if kind == "warning":
            self._view.say(f"{entry.label}: {event['text']}", style="yellow")
            return
        if kind == "log":
            self._view.say(
                f"{entry.label}: epoch {event['epoch']}, iteration {event['iteration']}, "
                f"loss {number(event['loss'])} (rank 0)"
            )
        self._view.progress(entry, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._view.done(entry, repeat, result)


class _Screen:
    """Live bars, and below them a status line per worker of the running strategy."""

    def __init__(self, entries: Sequence[Entry], repeats: int, console: Console) -> None:
        self._repeats = repeats
        self._repeat = 0
        self._workers = WorkerStatusLines()
        self._progress = Progress(
            TextColumn("{task.fields[label]}", style="bold", markup=False, table_column=_LABEL),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[where]}", justify="right"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            entry.label: self._progress.add_task(
                "", total=repeats, start=False, label=entry.label, where="", loss=DASH, accuracy=DASH
            )
            for entry in entries
        }
        self._live = Live(Group(self._progress, self._workers), console=console, refresh_per_second=DRAW_HZ)

    def open(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._workers.clear()
        for task in self._progress.tasks:
            if not task.started:  # would look complete
                self._progress.update(task.id, visible=False)
        self._live.stop()

    def say(self, text: str, style: str = "") -> None:
        self._live.console.print(Text(text, style=style))

    def started(self, entry: Entry, repeat: int) -> None:
        self._repeat = repeat
        self._workers.clear()
        self._progress.start_task(self._tasks[entry.label])
        self._update(entry, 0.0, where=f"starting {entry.num_processes} processes" if repeat == 0 else "")

    def progress(self, entry: Entry, event: Event) -> None:
        self._workers.put(event)
        if event["rank"] != 0:
            return
        where = f"{event['step']}/{event['total_steps']}"
        if self._repeats > 1:
            where = f"repeat {self._repeat + 1}, {where}"
        figures = {"loss": number(event["loss"]), "accuracy": percent(event["accuracy"])}
        self._update(entry, event["step"] / max(event["total_steps"], 1), where=where, **figures)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._workers.clear()
        where = f"{result.steps} steps" if self._repeats == 1 else f"{repeat + 1} x {result.steps} steps"
        self._update(entry, 1.0, where=where)
        if repeat == self._repeats - 1:
            self._progress.stop_task(self._tasks[entry.label])

    def _update(self, entry: Entry, share: float, **fields: Any) -> None:
        """Move a bar, which is full after all repeats; `share` is the finished part of the current repeat."""
        self._progress.update(self._tasks[entry.label], completed=self._repeat + share, **fields)


class _Lines:
    """Progress for files and pipes: a line every few seconds and one per finished run."""

    def __init__(self, repeats: int, console: Console) -> None:
        self._repeats, self._console = repeats, console
        self._workers = WorkerStatusLines()
        self._said_at: float | None = None

    def open(self) -> None: ...

    def close(self) -> None: ...

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def started(self, entry: Entry, repeat: int) -> None:  # noqa: ARG002
        self._workers.clear()
        self._said_at = None

    def progress(self, entry: Entry, event: Event) -> None:
        self._workers.put(event)
        now = time.monotonic()
        if self._said_at is None:
            self._said_at = now
        if now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            self.say(f"{entry.label}: {self._workers.sentence()}")

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        which = f" ({repeat + 1} of {self._repeats})" if self._repeats > 1 else ""
        final = result.final
        self.say(
            f"{entry.label}{which}: {result.steps} steps in {result.train_s:.1f} s, "
            f"training loss {number(final.train_loss)}, test accuracy {percent(final.test_accuracy)}"
        )


class PointsBar(StudyListener):
    """One bar for many points, and a status line per worker. Use it as a context manager."""

    def __init__(self, num_runs: int, repeats: int, console: Console) -> None:
        self._repeats = repeats
        self._num_started = 0
        self._workers = WorkerStatusLines()
        columns = (
            TextColumn("{task.completed:.0f} of {task.total:.0f} runs", style="bold"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting", total=num_runs)
        self._live = Live(
            Group(self._progress, self._workers), console=console, refresh_per_second=DRAW_HZ, transient=True
        )

    def __enter__(self) -> PointsBar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.clear()
        self._live.stop()

    def started(self, entry: Entry, repeat: int) -> None:
        self._workers.clear()
        # A failed run reports no end; a new start means that the previous run is over.
        self._progress.update(self._task, completed=self._num_started, description=self._name(entry, repeat))
        self._num_started += 1

    def event(self, entry: Entry, event: Event) -> None:
        if event["kind"] == "warning":
            self._live.console.print(Text(f"{entry.label}: {event['text']}", style="yellow"))
        else:
            self._workers.put(event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._progress.update(self._task, completed=self._num_started)
        mean = f"{1000 * result.iteration_s.mean:.2f} ms/step"
        self._live.console.print(Text(f"{self._name(entry, repeat)}: {mean}"))

    def _name(self, entry: Entry, repeat: int) -> str:
        return f"{entry.label} ({repeat + 1} of {self._repeats})" if self._repeats > 1 else entry.label
