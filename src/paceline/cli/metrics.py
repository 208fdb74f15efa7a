"""The option `--metrics-port`: serve Prometheus metrics while a command runs."""

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


class MetricsListener(StudyListener):
    """Stores a study's progress for the metrics server to read, and forwards every callback to another listener."""

    def __init__(self, board: MetricsBoard, forward_to: StudyListener) -> None:
        self._board, self._next = board, forward_to

    def planned(self, cells: Sequence[Cell]) -> None:
        self._next.planned(cells)

    def started(self, entry: Entry, repeat: int) -> None:
        self._next.started(entry, repeat)
        self._board.start(entry.label)

    def event(self, entry: Entry, event: Event) -> None:
        self._next.event(entry, event)
        self._board.put(entry.label, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        self._next.done(entry, repeat, result)
        self._board.finish(entry.label)

    def stage_done(self, result: StudyResult) -> None:
        self._next.stage_done(result)


@contextmanager
def serve_metrics(port: int, host: str, console: Console, forward_to: StudyListener) -> Iterator[StudyListener]:
    """Serve metrics while the `with` block runs.

    Yields a listener that updates the metrics and forwards every callback to `forward_to`.
    """
    from paceline.measure.prometheus import MetricsBoard, metrics_server  # needs prometheus_client

    board = MetricsBoard()
    with metrics_server(board, host=host, port=port) as address:
        console.print(f"metrics on {address}", markup=False, soft_wrap=True)
        yield MetricsListener(board, forward_to)
