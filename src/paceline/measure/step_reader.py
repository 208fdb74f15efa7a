"""Step ranges such as `10:15` (steps 10 to 14), and a reader of worker files that keeps only a few steps in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paceline.errors import UsageError

RULE = "write FIRST:END, as 10:15 for steps 10 to 14: steps count from 0, and the end is not among them"


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
        """Parse the value of an option; UsageError names the option."""
        match = re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})\s*", text, re.ASCII)
        if match is None:
            raise UsageError(f"{option} {text!r} is not a range of steps; {RULE}")
        first, end = int(match[1]), int(match[2])
        if end <= first:
            raise UsageError(f"{option} {text!r} holds no step; {RULE}")
        return StepRange(first, end)


def check_within(steps: StepRange, total_steps: int, option: str) -> None:
    """Raise UsageError if a range ends after the run, before the run starts."""
    if steps.end > total_steps:
        has = "1 step, number 0" if total_steps == 1 else f"{total_steps} steps, 0 to {total_steps - 1}"
        raise UsageError(
            f"{option} {steps.first}:{steps.end} reaches beyond the run, which has {has}; the end may be "
            f"{total_steps} at most, as it is not among the steps"
        )


# A collective may complete, and be written, while the worker is in its next step.
LATE_STEPS = 2


class Key(NamedTuple):
    """Identity of an operation: the k-th collective of a worker, or its k-th message with a peer, tag and direction."""

    op: str
    number: int
    peer: int | None
    tag: int

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv")


class Span(NamedTuple):
    """A phase of the loop."""

    phase: str
    begin_s: float
    end_s: float


class CommOp(NamedTuple):
    """An operation of the comm, from its call to its completion on this worker."""

    key: Key
    nbytes: int
    begin_s: float
    end_s: float


class CommBlock(NamedTuple):
    """Time of the worker's thread inside the comm, either blocked or busy."""

    key: Key
    begin_s: float
    end_s: float
    is_busy: bool = False


@dataclass
class StepLines:
    """The lines of one worker for one step."""

    step: int
    begin_s: float = 0.0
    iteration_s: float = 0.0
    is_complete: bool = False  # whether the step line was read
    spans: list[Span] = field(default_factory=list)
    ops: list[CommOp] = field(default_factory=list)
    blocked: list[CommBlock] = field(default_factory=list)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.iteration_s

    @property
    def is_measured(self) -> bool:
        """Whether the step finished and its spans were kept."""
        return self.is_complete and bool(self.spans)


def read_steps(lines: Iterable[Mapping[str, Any]]) -> Iterator[StepLines]:
    """Yield the measured steps of one worker in order; steps without spans are skipped."""
    waiting: dict[int, StepLines] = {}
    newest = -1
    for line in lines:
        kind = line.get("kind")
        if kind not in ("step", "span", "op", "blocked") or "begin_s" not in line:
            continue
        step = line["step"]
        if step > newest:
            newest = step
            for done in [number for number in waiting if number < step - LATE_STEPS]:
                yield from _measured(waiting.pop(done))
        elif step < newest - LATE_STEPS:
            continue  # its step was already yielded
        _add(waiting.setdefault(step, StepLines(step)), kind, line)
    for step in sorted(waiting):
        yield from _measured(waiting[step])


def _measured(lines: StepLines) -> Iterator[StepLines]:
    if lines.is_measured:
        yield lines


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


def together(workers: Mapping[int, Iterable[StepLines]]) -> Iterator[dict[int, StepLines]]:
    """Yield each step with the lines of all workers that measured it, by rank."""
    sources = {rank: iter(steps) for rank, steps in workers.items()}
    heads = {rank: first for rank, source in sources.items() if (first := next(source, None)) is not None}
    while heads:
        step = min(lines.step for lines in heads.values())
        group = {rank: lines for rank, lines in heads.items() if lines.step == step}
        yield group
        for rank in group:
            following = next(sources[rank], None)
            if following is None:
                del heads[rank]
            else:
                heads[rank] = following


def stands_for(step: int) -> int:
    """Return the number of steps that a kept step represents: 1 at first, then more, as fewer steps are kept."""
    return 1 if step < 1000 else 1 << (step // 1000).bit_length()
