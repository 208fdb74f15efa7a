"""Progress of a study of many points: one bar for all of them, and what each worker of the running one does."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from paceline.cli.parts.progress import DRAW_HZ, Lines
from paceline.cli.parts.workers import Workers
from paceline.study.entries import Entry
from paceline.study.results import Result
from paceline.train.context import Event


class PointsBar:
    """Follows a study. Use it as a context manager."""

    def __init__(self, *, num_runs: int, repeats: int, console: Console) -> None:
        self._repeats = repeats
        self._num_started = 0
        self._workers = Workers()
        self._lines = Lines(repeats, console)
        columns = (
            TextColumn("{task.completed:.0f} of {task.total:.0f} runs", style="bold"),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting", total=num_runs)
        is_drawn = console.is_terminal and not console.quiet
        live = Live(Group(self._progress, self._workers), console=console, refresh_per_second=DRAW_HZ, transient=True)
        self._live = live if is_drawn else None

    def __enter__(self) -> PointsBar:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.clear()
        if self._live is not None:
            self._live.stop()

    def started(self, entry: Entry, repeat: int) -> None:
        self._lines.started(entry, repeat)
        self._workers.clear()
        which = f" ({repeat + 1} of {self._repeats})" if self._repeats > 1 else ""
        # One that fails ends too: what has been started before this one is over.
        self._progress.update(self._task, completed=self._num_started, description=f"{entry.label}{which}")
        self._num_started += 1

    def event(self, entry: Entry, event: Event) -> None:
        if event["kind"] == "warning":
            self._say(f"{entry.label}: {event['text']}", style="yellow")
        elif self._live is not None:
            self._workers.put(event)
        else:
            self._lines.progress(entry, event)

    def done(self, entry: Entry, repeat: int, result: Result) -> None:
        self._progress.update(self._task, completed=self._num_started)
        if self._live is None:
            self._lines.done(entry, repeat, result)
            return
        which = f" ({repeat + 1} of {self._repeats})" if self._repeats > 1 else ""
        self._say(f"{entry.label}{which}: {1000 * result['iteration_s']['mean']:.2f} ms/step")

    def _say(self, text: str, style: str = "") -> None:
        if self._live is None:
            self._lines.say(text, style)
        else:
            self._live.console.print(Text(text, style=style))
