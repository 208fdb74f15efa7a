"""Who watches a worker's loop: observers are told what it does, and neither strategies nor models know of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from paceline.results.value import Json

Row = Json  # a line of workers/RANK.jsonl, or facts about a step

COMMUNICATION = "communication"  # the loop waits for the strategy to agree, after backward or after the step
PHASES = ("data", "forward", "backward", "optimizer", "evaluation", COMMUNICATION)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What an observer may want to know when a run begins, and where it leaves what it found."""

    rank: int
    world_size: int
    total_steps: int
    steps_per_epoch: int
    folder: str  # the run's folder while it is written; empty where there is none or this worker cannot reach it
    write: Callable[[Row], None]  # puts a line into workers/RANK.jsonl; any thread may call it, and it never blocks
    run_time: Callable[[float], float]  # this worker's perf_counter as seconds since the run's start, on rank 0's clock


class Observer:
    """Told about one worker's loop, in its own thread. Times are those of `time.perf_counter`."""

    def run_begins(self, facts: RunFacts) -> None: ...

    def step_begins(self, step: int) -> None: ...

    def phase_begins(self, phase: str) -> None: ...

    def before_phase_ends(self, phase: str, elapsed_s: float) -> None:
        """What is done here belongs to the phase: it slows it down."""

    def phase_ends(self, phase: str, begin: float, end: float) -> None: ...

    def step_ends(self, step: int, facts: Row) -> None:
        """`facts`: begin (perf_counter), iteration_s, data_s, loss, num_right, num_answers, num_samples,
        sent_bytes (so far, by the comm's own count)."""

    def steps_end(self) -> None:
        """After the last step, before replicas are brought together and judged."""

    def pause(self) -> None:
        """Until `resume`, nothing is wanted: what measuring costs is found by leaving it out now and then."""

    def resume(self) -> None: ...

    def run_ends(self) -> None:
        """Also when training failed."""

    def findings(self) -> Row:
        """After a run that did not fail: fields of the WorkerReport that this observer knows."""
        return {}


class Observers:
    """All observers of one loop, told in order; of its end in reverse, so that the first may write for all."""

    def __init__(
        self,
        members: Sequence[Observer] = (),
        synchronize: Callable[[], None] | None = None,
        *,
        steps_per_block: int = 0,
    ) -> None:
        """`synchronize` waits for a device that computes behind the loop's back, so that phases last as they should.

        With steps per block, observers are told of one block of steps and not of another, see `is_measured`.
        """
        self.members = self._everybody = tuple(members)
        # The others need no exact phases: a device is not waited for on their account.
        self._of_phases = tuple(filter(_watches_phases, self.members))
        self._synchronize = synchronize
        self._steps_per_block = steps_per_block

    def run_begins(self, facts: RunFacts) -> None:
        for member in self.members:
            member.run_begins(facts)

    def step_begins(self, step: int) -> None:
        if self._steps_per_block and step % self._steps_per_block == 0:
            self._switch(is_on=is_measured(step, self._steps_per_block))
        for member in self.members:
            member.step_begins(step)

    def begin_phase(self, phase: str) -> float:
        """A phase begins; says when, for its end."""
        for member in self.members:
            member.phase_begins(phase)
        return time.perf_counter()

    def end_phase(self, phase: str, begin: float) -> None:
        """A phase that began then ends now, as soon as observers let it."""
        if not self._of_phases:
            return
        if self._synchronize is not None:
            self._synchronize()
        elapsed_s = time.perf_counter() - begin
        for member in self._of_phases:
            member.before_phase_ends(phase, elapsed_s)
        end = time.perf_counter()
        for member in self._of_phases:
            member.phase_ends(phase, begin, end)

    def step_ends(self, step: int, facts: Row) -> None:
        for member in self.members:
            member.step_ends(step, facts)

    def steps_end(self) -> None:
        for member in self._everybody:
            member.steps_end()

    def run_ends(self) -> None:
        with ExitStack() as stack:  # one that fails does not keep the others from ending
            for member in self._everybody:
                stack.callback(member.run_ends)

    def findings(self) -> Row:
        found: Row = {}
        for member in self._everybody:
            found |= member.findings()
        return found

    def _switch(self, *, is_on: bool) -> None:
        for member in self._everybody:
            (member.resume if is_on else member.pause)()
        self.members = self._everybody if is_on else ()
        self._of_phases = tuple(filter(_watches_phases, self.members))


def is_measured(step: int, steps_per_block: int) -> bool:
    """Whether a step is measured where blocks with and without take turns: on, off, off, on, over and over.

    In that order neither comes first more often, so that a machine that gets slower or faster favours neither.
    """
    return step // steps_per_block % 4 in (0, 3)


def _watches_phases(member: Observer) -> bool:
    cls = type(member)
    return cls.phase_ends is not Observer.phase_ends or cls.before_phase_ends is not Observer.before_phase_ends


NOBODY = Observers()
