"""Read the recorded steps of a run, and find out when each worker called a comm operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.errors import UsageError
from paceline.results import Interval

FULL_STEPS = 1000  # below this step, the spans of every step are recorded
# A line may be written up to this many steps after its step, since a collective may complete in a later step.
LATE_STEPS = 2
# Arrival times are available for this many steps: a message may be received some steps after it was sent.
ARRIVAL_STEPS = 4

RULE = "write FIRST:END, such as 10:15 for steps 10 to 14 (steps count from 0, END is excluded)"


@dataclass(frozen=True)
class StepRange:
    """Steps from `first` up to, but not including, `end`."""

    first: int
    end: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step < self.end

    def __str__(self) -> str:
        last = self.end - 1
        return f"step {self.first}" if last == self.first else f"steps {self.first} to {last}"

    @staticmethod
    def parse(text: str, option: str) -> StepRange:
        """Parse `FIRST:END`, the value of `option`; raise UsageError if it is invalid."""
        match = re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})\s*", text, re.ASCII)
        if match is None:
            raise UsageError(f"{option} {text!r} is not a range of steps; {RULE}")
        first, end = int(match[1]), int(match[2])
        if end <= first:
            raise UsageError(f"{option} {text!r} contains no step; {RULE}")
        return StepRange(first, end)


def check_within(steps: StepRange, total_steps: int, option: str) -> None:
    """Raise UsageError if `steps`, the value of `option`, reach beyond the run's last step."""
    if steps.end > total_steps:
        has = "1 step, number 0" if total_steps == 1 else f"{total_steps} steps, 0 to {total_steps - 1}"
        raise UsageError(
            f"{option} {steps.first}:{steps.end} reaches beyond the run, which has {has}; END may be at "
            f"most {total_steps} (it is excluded)"
        )


def num_steps_represented(step: int) -> int:
    """Return how many steps a recorded step represents in averages: itself and the unrecorded steps after it.

    For steps before FULL_STEPS, the number is 1, because the spans of all these steps are recorded. It doubles at
    FULL_STEPS, at two times FULL_STEPS, at four times FULL_STEPS and so on, so that every doubling of a run's length
    adds the same number of recorded steps.
    """
    return 1 << (step // FULL_STEPS).bit_length()


def records_spans(step: int) -> bool:
    """Return whether the spans of a step are recorded.

    The result depends only on the step's number, so all workers record the same steps.
    """
    return step % num_steps_represented(step) == 0


class Key(NamedTuple):
    """Identity of a comm operation on one worker.

    `number` is the position of a collective among all collectives of the worker, or of a message among the worker's
    messages with the same peer, tag and direction.
    """

    op: str
    number: int
    peer: int | None
    tag: int

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv")


class Span(NamedTuple):
    """A phase of the training loop, such as forward, with its begin and end."""

    phase: str
    begin_s: float
    end_s: float


class CommOp(NamedTuple):
    """An operation of a comm, from its call to its completion on this worker."""

    key: Key
    nbytes: int
    begin_s: float
    end_s: float


class CommBlock(NamedTuple):
    """A period that the worker's thread spends inside a comm operation.

    The thread is blocked or, if `is_busy`, copies or adds data itself.
    """

    key: Key
    begin_s: float
    end_s: float
    is_busy: bool = False


@dataclass
class StepLines:
    """The records of one step in one worker's file."""

    step: int
    begin_s: float = 0.0
    iteration_s: float = 0.0
    is_complete: bool = False  # whether the file has the line that ends the step
    spans: list[Span] = field(default_factory=list)
    ops: list[CommOp] = field(default_factory=list)
    blocked: list[CommBlock] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.iteration_s

    @property
    def is_measured(self) -> bool:
        """Whether the step finished and its spans were recorded."""
        return self.is_complete and bool(self.spans)


def read_steps(lines: Iterable[Mapping[str, Any]]) -> Iterator[StepLines]:
    """Yield the measured steps of one worker in order, from the lines of its file. Keep only a few steps in memory."""
    unfinished: dict[int, StepLines] = {}
    newest = -1
    for line in lines:
        kind = line.get("kind")
        if kind not in ("step", "span", "op", "blocked") or "begin_s" not in line:
            continue
        step = line["step"]
        if step > newest:
            newest = step
            finished = [unfinished.pop(number) for number in list(unfinished) if number < step - LATE_STEPS]
            yield from (lines_of_step for lines_of_step in finished if lines_of_step.is_measured)
        elif step < newest - LATE_STEPS:
            continue  # its step was already yielded
        _add(unfinished.setdefault(step, StepLines(step)), kind, line)
    yield from (unfinished[step] for step in sorted(unfinished) if unfinished[step].is_measured)


def _add(lines: StepLines, kind: str, line: Mapping[str, Any]) -> None:
    begin_s = line["begin_s"]
    if kind == "step":
        lines.begin_s, lines.iteration_s, lines.is_complete = begin_s, line["iteration_s"], True
        return
    end_s = line["end_s"]
    if kind == "span":
        lines.spans.append(Span(line["phase"], begin_s, end_s))
        return
    key = Key(line["op"], line["number"], line["peer"], line["tag"])
    if kind == "op":
        lines.ops.append(CommOp(key, line["bytes"], begin_s, end_s))
    else:
        lines.blocked.append(CommBlock(key, begin_s, end_s, line.get("busy", False)))


def group_by_step(workers: Mapping[int, Iterable[StepLines]]) -> Iterator[dict[int, StepLines]]:
    """Yield for each step a dict with the records of the workers that measured the step, by rank."""
    sources = {rank: iter(steps) for rank, steps in workers.items()}
    upcoming = {rank: first for rank, source in sources.items() if (first := next(source, None)) is not None}
    while upcoming:
        step = min(lines.step for lines in upcoming.values())
        group = {rank: lines for rank, lines in upcoming.items() if lines.step == step}
        yield group
        for rank in group:
            following = next(sources[rank], None)
            if following is None:
                del upcoming[rank]
            else:
                upcoming[rank] = following


class Arrival(NamedTuple):
    """The time at which a worker, `rank`, called a comm operation."""

    time_s: float
    rank: int


class Arrivals:
    """The times at which the workers called the comm operations of the last ARRIVAL_STEPS steps."""

    def __init__(self) -> None:
        self._ops: dict[tuple[int, ...], dict[int, CommOp]] = {}  # by operation and rank
        self._steps: list[list[tuple[int, ...]]] = []

    def add(self, group: Mapping[int, StepLines]) -> None:
        """Add one step of all workers, and keep the operations of the last ARRIVAL_STEPS steps."""
        added = []
        for rank, lines in group.items():
            for op in lines.ops:
                added.append(_identity(op.key, rank))
                self._ops.setdefault(added[-1], {})[rank] = op
        self._steps.append(added)
        if len(self._steps) > ARRIVAL_STEPS:
            for identity in self._steps.pop(0):
                self._ops.pop(identity, None)

    def last(self, key: Key, rank: int, end_s: float) -> Arrival | None:
        """Return the worker that was the last to call an operation, and the time of its call.

        `key` identifies the operation on worker `rank`, and `end_s` is the time at which it ends there. Only calls by
        worker `rank` and by the workers that its operation needs are considered. Calls by other workers after `end_s`
        are ignored, because worker `rank` did not wait for them: a message can be buffered, and the senders of a gather
        need not wait for its root. Return None if no call by another worker remains.
        """
        ops = self._ops.get(_identity(key, rank), {})
        needs_root_only = key.op in ("broadcast", "gather", "scatter") and key.peer is not None and rank != key.peer
        arrivals = [
            Arrival(op.begin_s, other)
            for other, op in ops.items()
            if other == rank or (op.begin_s <= end_s and (other == key.peer or not needs_root_only))
        ]
        return max(arrivals) if any(arrival.rank != rank for arrival in arrivals) else None

    def transfer(self, op: CommOp, rank: int) -> Interval:
        """Return the interval in which the operation `op` of worker `rank` could transfer bytes.

        The interval begins when the last worker calls the operation (see `last`), and ends when the operation ends on
        worker `rank`. The recorded end of a send can be several steps late, because a comm may notice it only when it
        polls the send. A send's interval therefore ends when the peer has received the message, if that is earlier.
        """
        arrival = self.last(op.key, rank, op.end_s)
        end_s = op.end_s
        if op.key.op == "send" and op.key.peer is not None:
            received = self._ops.get(_identity(op.key, rank), {}).get(op.key.peer)
            if received is not None:
                end_s = max(op.begin_s, min(end_s, received.end_s))
        return (op.begin_s if arrival is None else max(op.begin_s, min(arrival.time_s, end_s)), end_s)


def _identity(key: Key, rank: int) -> tuple[int, ...]:
    """Return an identity of an operation that is equal on all participating workers.

    The identity of a collective is its number, and that of a message is (sender, receiver, tag, number).
    """
    if not key.is_message:
        return (key.number,)
    assert key.peer is not None, "a message has a peer"
    sender, receiver = (rank, key.peer) if key.op == "send" else (key.peer, rank)
    return sender, receiver, key.tag, key.number
