"""Display of the progress of runs and studies: live bars in a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from paceline.present.numbers import DASH, number, percentage
from paceline.results import RunResult, StudyResult
from paceline.study.base import Cell, StudyListener
from paceline.study.entries import Entry
from paceline.train.context import Event

LINE_EVERY_S = 10.0  # shortest time between two plain lines
DRAW_HZ = 4  # low, because drawing takes processor time from the workers
MOST_WORKER_LINES = 8
_LABEL = Column(max_width=30, no_wrap=True, overflow="ellipsis")  # all columns fit a terminal of 100 characters


class StudyProgress(StudyListener):
    """Context manager that shows the progress of a study.

    Each stage (set of planned runs) of the study gets new bars or lines.
    """

    def __init__(
        self, console: Console, *, has_bar_per_entry: bool, on_stage: Callable[[Any], str] | None = None
    ) -> None:
        self._console, self._has_bar_per_entry, self._on_stage = console, has_bar_per_entry, on_stage
        self._view = StudyListener()  # shows nothing
        self._open_view = ExitStack()

    def __enter__(self) -> StudyProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def planned(self, cells: Sequence[Cell]) -> None:
        self._close()
        if not cells:
            return
        repeats = max(cell.repeat for cell in cells) + 1
        view: RunsBar | StrategyProgress
        if _has_bars(self._console) and not self._has_bar_per_entry:
            view = RunsBar(len(cells), repeats, self._console)
        else:
            entries = {cell.progress_entry.label: cell.progress_entry for cell in cells}
            view = strategy_progress(list(entries.values()), repeats=repeats, console=self._console)
        self._view = self._open_view.enter_context(view)

    def started(self, entry: Entry, repeat: int) -> None:
        self._view.started(entry, repeat)

    def event(self, entry: Entry, event: Event) -> None:
        self._view.event(entry, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._view.done(entry, repeat, result)

    def stage_done(self, result: StudyResult) -> None:
        self._close()
        line = self._on_stage(result) if self._on_stage is not None else ""
        if line:
            self._console.print(line, markup=False)

    def _close(self) -> None:
        self._open_view.close()
        self._view = StudyListener()


def _has_bars(console: Console) -> bool:
    return console.is_terminal and not console.quiet


class StrategyProgress(StudyListener, ABC):
    """Base class of progress displays for strategies that train in turn. A display is a context manager."""

    def __enter__(self) -> StrategyProgress:
        return self

    def __exit__(self, *_: object) -> None: ...

    def event(self, entry: Entry, event: Event) -> None:
        kind = event["kind"]
        if kind == "warning":
            self.say(f"{entry.label}: {event['text']}", style="yellow")
            return
        if kind == "log":
            self.say(
                f"{entry.label}: step {event['iteration']} of epoch {event['epoch']}, "
                f"loss {number(event['loss'])} (rank 0)"
            )
        self.progress(entry, event)

    @abstractmethod
    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bars, or as the next line if there are no bars."""

    @abstractmethod
    def progress(self, entry: Entry, event: Event) -> None:
        """Show the progress that a worker's event reports."""


def strategy_progress(entries: Sequence[Entry], *, repeats: int, console: Console) -> StrategyProgress:
    """Return a display of progress: with live bars if the console is a terminal, else with plain lines."""
    if _has_bars(console):
        return StrategyBars(entries, repeats, console)
    return PlainLines(repeats, console)


class StrategyBars(StrategyProgress):
    """A live bar per strategy, and below the bars a status line per worker of the running strategy."""

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

    def __enter__(self) -> StrategyBars:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.clear()
        for task in self._progress.tasks:
            if not task.started:  # rich draws a bar that never started as if it were complete
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
        figures = {"loss": number(event["loss"]), "accuracy": percentage(event["accuracy"])}
        self._update(entry, event["step"] / max(event["total_steps"], 1), where=where, **figures)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._workers.clear()
        where = f"{result.steps} steps" if self._repeats == 1 else f"{repeat + 1} x {result.steps} steps"
        self._update(entry, 1.0, where=where)
        if repeat == self._repeats - 1:
            self._progress.stop_task(self._tasks[entry.label])

    def _update(self, entry: Entry, share: float, **fields: Any) -> None:
        """Move a strategy's bar to the number of finished repeats plus `share`, the finished part of this repeat."""
        self._progress.update(self._tasks[entry.label], completed=self._repeat + share, **fields)


class PlainLines(StrategyProgress):
    """Plain lines of progress for files and pipes: one every few seconds, and one for each finished run."""

    def __init__(self, repeats: int, console: Console) -> None:
        self._repeats, self._console = repeats, console
        self._workers = WorkerStatusLines()
        self._last_line_s: float | None = None

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def started(self, entry: Entry, repeat: int) -> None:  # noqa: ARG002
        self._workers.clear()
        self._last_line_s = None

    def progress(self, entry: Entry, event: Event) -> None:
        self._workers.put(event)
        now = time.monotonic()
        if self._last_line_s is None:
            self._last_line_s = now
        if now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            self.say(f"{entry.label}: {self._workers.sentence()}")

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        which = f" ({repeat + 1} of {self._repeats})" if self._repeats > 1 else ""
        final = result.final
        self.say(
            f"{entry.label}{which}: {result.steps} steps in {result.train_s:.1f} s, "
            f"training loss {number(final.train_loss)}, test accuracy {percentage(final.test_accuracy)}"
        )


class RunsBar(StudyListener):
    """Context manager that shows one bar for all runs of a study, and a status line per worker."""

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

    def __enter__(self) -> RunsBar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.clear()
        self._live.stop()

    def started(self, entry: Entry, repeat: int) -> None:
        self._workers.clear()
        # `done` is not called for a failed run, so the start of a run also counts the previous run as completed.
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


class WorkerStatusLines:
    """Status lines of the workers. Each line is made from the worker's latest event.

    With more than eight workers, the eighth line summarises the rest.
    """

    def __init__(self) -> None:
        self._latest: dict[int, Event] = {}

    def put(self, event: Event) -> None:
        # A new dict each time, because another thread may be drawing the old one.
        self._latest = {**self._latest, event["rank"]: event}

    def clear(self) -> None:
        self._latest = {}

    def lines(self) -> list[tuple[str, ...]]:
        """Return each line as five strings: worker, step, loss, throughput, and share of time spent communicating."""
        events = [event for _, event in sorted(self._latest.items())]
        num_single = len(events) if len(events) <= MOST_WORKER_LINES else MOST_WORKER_LINES - 1
        lines = [_status(f"worker {event['rank']}", [event]) for event in events[:num_single]]
        if rest := events[num_single:]:
            lines.append(_status(f"{len(rest)} more", rest))
        return lines

    def sentence(self) -> str:
        """Return the status of all workers in one sentence."""
        events = list(self._latest.values())
        name = "worker 0" if len(events) == 1 else f"{len(events)} workers"
        _, step, loss, speed, in_comm = _status(name, events)
        return f"{name} at step {step} of {events[0]['total_steps']}, loss {loss}, {speed}, {in_comm}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        for name, step, loss, speed, in_comm in self.lines():
            table.add_row(*(Text(cell) for cell in (f"  {name}", f"step {step}", f"loss {loss}", speed, in_comm)))
        yield table


def _status(name: str, events: list[Event]) -> tuple[str, ...]:
    losses = [event["loss"] for event in events]
    speed = sum(event["samples_per_s"] for event in events)
    shares = [event["in_comm_percent"] for event in events if event["in_comm_percent"] is not None]
    return (
        name,
        _value_range(event["step"] for event in events),
        number(sum(losses) / len(losses)),
        f"{speed:,.0f} samples/s",
        f"communicating {_value_range(round(share) for share in shares)} %" if shares else f"communicating {DASH}",
    )


def _value_range(values: Iterable[int]) -> str:
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    return f"{low}" if low == high else f"{low} to {high}"
