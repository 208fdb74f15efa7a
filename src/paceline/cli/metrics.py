"""Prometheus text while a command runs, for whoever asked for it with --metrics-port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from paceline.measure.prometheus import MetricsBoard, MetricsServer
from paceline.results import RunResult, StudyResult
from paceline.study.base import Cell, StudyListener
from paceline.study.entries import Entry
from paceline.train.context import Event


class Metrics(StudyListener):
    """Follows a study for a board of figures."""

    def __init__(self, board: MetricsBoard) -> None:
        self._board = board

    def started(self, entry: Entry, repeat: int) -> None:  # noqa: ARG002
        self._board.start(entry.label)

    def event(self, entry: Entry, event: Event) -> None:
        self._board.put(entry.label, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:  # noqa: ARG002
        self._board.finish(entry.label)


class ListenerGroup(StudyListener):
    """Several followers of one study, told in order."""

    def __init__(self, followers: Sequence[StudyListener]) -> None:
        self._followers = followers

    def planned(self, cells: Sequence[Cell]) -> None:
        for follower in self._followers:
            follower.planned(cells)

    def started(self, entry: Entry, repeat: int) -> None:
        for follower in self._followers:
            follower.started(entry, repeat)

    def event(self, entry: Entry, event: Event) -> None:
        for follower in self._followers:
            follower.event(entry, event)

    def done(self, entry: Entry, repeat: int, result: RunResult) -> None:
        for follower in self._followers:
            follower.done(entry, repeat, result)

    def stage_done(self, result: StudyResult) -> None:
        for follower in self._followers:
            follower.stage_done(result)


@contextmanager
def serving(port: int | None, host: str, console: Console, *, is_main: bool) -> Iterator[list[StudyListener]]:
    """A follower whose figures are served while the block lasts; none where nobody asked, or another process serves."""
    if port is None or not is_main:
        yield []
        return
    board = MetricsBoard()
    server = MetricsServer(board.text, host=host, port=port)
    try:
        console.print(f"metrics on {server.address}", markup=False, soft_wrap=True)
        yield [Metrics(board)]
    finally:
        server.close()
