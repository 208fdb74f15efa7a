"""Arrival times: when each worker reached an operation, and so when its bytes could move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.measure.intervals import Interval
from paceline.measure.step_reader import CommOp, Key, StepLines

# Steps kept: a message may be received some steps after it was sent.
KEPT_GROUPS = 4


class Arrival(NamedTuple):
    """The time at which a worker reached an operation."""

    time_s: float
    rank: int


class Arrivals:
    """Arrival times of all workers at the operations of the last KEPT_GROUPS steps."""

    def __init__(self) -> None:
        self._collectives: dict[int, dict[int, float]] = {}
        self._messages: dict[tuple[int, int, int, int], dict[int, CommOp]] = {}
        self._groups: list[tuple[list[int], list[tuple[int, int, int, int]]]] = []

    def add(self, group: Mapping[int, StepLines]) -> None:
        """Add one step of all workers and drop the oldest."""
        numbers, messages = [], []
        for rank, lines in group.items():
            for op in lines.ops:
                if op.key.is_message:
                    message = _message(op.key, rank)
                    self._messages.setdefault(message, {})[rank] = op
                    messages.append(message)
                else:
                    self._collectives.setdefault(op.key.number, {})[rank] = op.begin_s
                    numbers.append(op.key.number)
        self._groups.append((numbers, messages))
        if len(self._groups) > KEPT_GROUPS:
            for number in self._groups[0][0]:
                self._collectives.pop(number, None)
            for message in self._groups.pop(0)[1]:
                self._messages.pop(message, None)

    def last(self, key: Key, rank: int, end_s: float) -> Arrival | None:
        """Return the last arrival that a worker's operation depended on; None if no other worker is known.

        Arrivals after the operation ended on this worker are excluded: a message can be buffered, and senders of a
        gather need not wait for its root.
        """
        if key.is_message:
            begins = {other: op.begin_s for other, op in self._messages.get(_message(key, rank), {}).items()}
        else:
            begins = self._collectives.get(key.number, {})
            begins = {other: begins[other] for other in _needed(key, rank, begins) if other in begins}
        arrivals = [Arrival(begin_s, other) for other, begin_s in begins.items() if other == rank or begin_s <= end_s]
        if not any(arrival.rank != rank for arrival in arrivals):
            return None
        return max(arrivals)

    def transfer(self, op: CommOp, rank: int) -> Interval:
        """Return the interval in which an operation could move bytes: from the last arrival to its end.

        A comm may report a send as complete only when it is polled, steps later; the interval ends when the peer has
        received it.
        """
        arrival = self.last(op.key, rank, op.end_s)
        end_s = op.end_s
        if op.key.op == "send" and op.key.peer is not None:
            received = self._messages.get(_message(op.key, rank), {}).get(op.key.peer)
            if received is not None:
                end_s = max(op.begin_s, min(end_s, received.end_s))
        return (op.begin_s if arrival is None else max(op.begin_s, min(arrival.time_s, end_s)), end_s)


def _message(key: Key, rank: int) -> tuple[int, int, int, int]:
    """Return sender, receiver, tag and number, which are equal on both ends."""
    assert key.peer is not None, "a message has a peer"
    sender, receiver = (rank, key.peer) if key.op == "send" else (key.peer, rank)
    return sender, receiver, key.tag, key.number


def _needed(key: Key, rank: int, known: Iterable[int]) -> Iterable[int]:
    """Return the ranks that a worker's part of a collective depends on."""
    if key.op in ("broadcast", "gather", "scatter") and key.peer is not None and rank != key.peer:
        return (rank, key.peer)
    return known
