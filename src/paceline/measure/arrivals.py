"""Who came to an operation last, and when a message was there: between the two, bytes can move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paceline.measure.intervals import Interval
from paceline.measure.step_reader import CommOp, Key, StepLines

# Messages may be received some steps after they were sent; what is older than this is forgotten.
KEPT_GROUPS = 4


class Arrival(NamedTuple):
    """The last one whom an operation needed, and when it came."""

    time_s: float
    rank: int


class Arrivals:
    """When every worker came to every operation of the last few steps."""

    def __init__(self) -> None:
        self._collectives: dict[int, dict[int, float]] = {}
        self._messages: dict[tuple[int, int, int, int], dict[int, CommOp]] = {}
        self._groups: list[tuple[list[int], list[tuple[int, int, int, int]]]] = []

    def add(self, group: Mapping[int, StepLines]) -> None:
        """Take in one step of all workers, and forget what is old."""
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
        """The last one whom a worker's operation needed; None where nobody else is known to have taken part.

        Who came after the operation had ended on this worker was not needed for it: a message can lie and wait, and
        the root of a gather need not be there for all of its senders to have sent.
        """
        if key.is_message:
            begins = {other: op.begin_s for other, op in self._messages.get(_message(key, rank), {}).items()}
        else:
            begins = self._collectives.get(key.number, {})
            begins = {other: begins[other] for other in _needed(key, rank, begins) if other in begins}
        there = [Arrival(begin_s, other) for other, begin_s in begins.items() if other == rank or begin_s <= end_s]
        if not any(arrival.rank != rank for arrival in there):
            return None
        return max(there)

    def transfer(self, op: CommOp, rank: int) -> Interval:
        """When a worker's operation could move bytes: from the last arrival to its end.

        A comm may say that a send is complete only when somebody looks at it, steps later; what the peer has received
        moves no more.
        """
        arrival = self.last(op.key, rank, op.end_s)
        end_s = op.end_s
        if op.key.op == "send" and op.key.peer is not None:
            received = self._messages.get(_message(op.key, rank), {}).get(op.key.peer)
            if received is not None:
                end_s = max(op.begin_s, min(end_s, received.end_s))
        return (op.begin_s if arrival is None else max(op.begin_s, min(arrival.time_s, end_s)), end_s)


def _message(key: Key, rank: int) -> tuple[int, int, int, int]:
    """Sender, receiver, tag and number: the same on both ends."""
    assert key.peer is not None, "a message has another end"
    sender, receiver = (rank, key.peer) if key.op == "send" else (key.peer, rank)
    return sender, receiver, key.tag, key.number


def _needed(key: Key, rank: int, known: Iterable[int]) -> Iterable[int]:
    """Whom a worker's part of a collective cannot do without."""
    if key.op in ("broadcast", "gather", "scatter") and key.peer is not None and rank != key.peer:
        return (rank, key.peer)
    return known
