"""Live status of each worker of a run, one line per worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from paceline.present.numbers import DASH, number

if TYPE_CHECKING:  # needs torch
    from paceline.train.context import Event

MOST_LINES = 8


class WorkerStatusLines:
    """The latest event of every worker, drawn as lines; workers beyond the eighth share one line."""

    def __init__(self) -> None:
        self._latest: dict[int, Event] = {}

    def put(self, event: Event) -> None:
        # A new dict each time, because another thread may be drawing the old one.
        self._latest = {**self._latest, event["rank"]: event}

    def clear(self) -> None:
        self._latest = {}

    def lines(self) -> list[tuple[str, ...]]:
        """Worker, step, loss, throughput and share of time in the comm."""
        events = [event for _, event in sorted(self._latest.items())]
        shown = events if len(events) <= MOST_LINES else events[: MOST_LINES - 1]
        found = [_line(f"worker {event['rank']}", [event]) for event in shown]
        rest = events[len(shown) :]
        if rest:
            found.append(_line(f"{len(rest)} more", rest))
        return found

    def sentence(self) -> str:
        """All workers in one sentence."""
        events = list(self._latest.values())
        who = "worker 0" if len(events) == 1 else f"{len(events)} workers"
        _, step, loss, speed, in_comm = _line(who, events)
        return f"{who} at step {step} of {events[0]['total_steps']}, loss {loss}, {speed}, {in_comm}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console, options
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        for who, step, loss, speed, in_comm in self.lines():
            table.add_row(*(Text(cell) for cell in (f"  {who}", f"step {step}", f"loss {loss}", speed, in_comm)))
        yield table


def _line(who: str, events: list[Event]) -> tuple[str, ...]:
    losses = [event["loss"] for event in events]
    speed = sum(event["samples_per_s"] for event in events)
    shares = [event["in_comm_percent"] for event in events if event["in_comm_percent"] is not None]
    return (
        who,
        _span(event["step"] for event in events),
        number(sum(losses) / len(losses)),
        f"{speed:,.0f} samples/s",
        f"in comm {_span(round(share) for share in shares)} %" if shares else f"in comm {DASH}",
    )


def _span(values: Iterable[int]) -> str:
    found = list(values)
    return f"{found[0]}" if min(found) == max(found) else f"{min(found)} to {max(found)}"
