"""--metrics-port: serve Prometheus metrics while a command runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from paceline.results import RunResult, StudyResult
from paceline.study.base import Cell, StudyListener
from paceline.study.entries import Entry
from paceline.train.context import Event

if TYPE_CHECKING:
    from paceline.measure.prometheus import MetricsBoard


class Metrics(StudyListener):
    """Listener that writes a study's progress to a metrics board."""

    def __init__(self, board: MetricsBoard) -> None:
        self._board = board

    def started(self, entry: Entry, repeat: int) -> None:  # noqa: ARG002
        self._board.start(entry.label)

    def event(self, entry: Entry, event: Event) -> None:
        self._board.put(entry.label, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:  # noqa: ARG002
        self._board.finish(entry.label)


class ListenerGroup(StudyListener):
    """Listener that forwards every callback to several listeners, in order."""

    def __init__(self, listeners: Sequence[StudyListener]) -> None:
        self._listeners = listeners

    def planned(self, cells: Sequence[Cell]) -> None:
        for listener in self._listeners:
            listener.planned(cells)

    def started(self, entry: Entry, repeat: int) -> None:
        for listener in self._listeners:
            listener.started(entry, repeat)

    def event(self, entry: Entry, event: Event) -> None:
        for listener in self._listeners:
            listener.event(entry, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        for listener in self._listeners:
            listener.done(entry, repeat, result)

    def stage_done(self, result: StudyResult) -> None:
        for listener in self._listeners:
            listener.stage_done(result)


@contextmanager
def serving(port: int | None, host: str, console: Console, *, is_main: bool) -> Iterator[list[StudyListener]]:
    """Serve metrics inside the block and yield the listener that updates them; none without a port or off rank 0."""
    if port is None or not is_main:
        yield []
        return
    from paceline.measure.prometheus import MetricsBoard, metrics_server  # needs prometheus_client

    board = MetricsBoard()
    with metrics_server(board, host=host, port=port) as address:
        console.print(f"metrics on {address}", markup=False, soft_wrap=True)
        yield [Metrics(board)]
