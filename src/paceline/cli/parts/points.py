"""Progress of a study of many points: one bar for all of them, and what each worker of the running one does."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from paceline.cli.parts.progress import DRAW_HZ, Bars
from paceline.cli.parts.workers import Workers
from paceline.study.entries import Entry
from paceline.study.results import Result
from paceline.train.context import Event


def follow_points(*, num_runs: int, repeats: int, console: Console) -> Bars | PointsBar:
    """A bar where there is a terminal to draw it on; elsewhere the plain lines that other studies have."""
    if console.is_terminal and not console.quiet:
        return PointsBar(num_runs, repeats, console)
    return Bars([], repeats=repeats, total_steps=0, console=console)


class PointsBar:
    """Follows a study in a terminal. Use it as a context manager."""

    def __init__(self, num_runs: int, repeats: int, console: Console) -> None:
        self._repeats = repeats
        self._num_started = 0
        self._workers = Workers()
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
        # One that fails ends too: what has been started before this one is over.
        self._progress.update(self._task, completed=self._num_started, description=self._name(entry, repeat))
        self._num_started += 1

    def event(self, entry: Entry, event: Event) -> None:
        if event["kind"] == "warning":
            self._live.console.print(Text(f"{entry.label}: {event['text']}", style="yellow"))
        else:
            self._workers.put(event)

    def done(self, entry: Entry, repeat: int, result: Result) -> None:
        self._progress.update(self._task, completed=self._num_started)
        mean = f"{1000 * result['iteration_s']['mean']:.2f} ms/step"
        self._live.console.print(Text(f"{self._name(entry, repeat)}: {mean}"))

    def _name(self, entry: Entry, repeat: int) -> str:
        return f"{entry.label} ({repeat + 1} of {self._repeats})" if self._repeats > 1 else entry.label
