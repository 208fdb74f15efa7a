"""Observers: objects that a worker's training loop calls at every step, to measure a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from paceline.results.value import Json
from paceline.worker_activity import ACTIVITY

# Phase in which the loop waits for the strategy to synchronise, after backward or after the optimiser's step.
COMMUNICATION = "communication"
WORK_PHASES = ("data", "forward", "backward", "optimizer")  # phases in which a worker loads data or computes
PHASES = (*WORK_PHASES, "evaluation", COMMUNICATION)


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts about a run, with functions to write to the worker's file and to convert times."""

    rank: int
    world_size: int
    total_steps: int
    steps_per_epoch: int
    folder: str  # where this worker stores files of the run; empty if the run is not stored
    write: Callable[[Json], None]  # appends a line to workers/RANK.jsonl; thread-safe, never blocks
    run_time: Callable[[float], float]  # this worker's perf_counter as seconds since the run's start, on rank 0's clock


class Observer:
    """Callbacks of one worker's training loop, called in the loop's thread.

    Times are from `time.perf_counter`.
    """

    def run_begins(self, facts: RunFacts) -> None: ...

    def step_begins(self, step: int) -> None: ...

    def phase_begins(self, phase: str) -> None: ...

    def before_phase_ends(self, phase: str, elapsed_s: float) -> None:
        """Called before the end time of the phase is read, so time spent here lengthens the phase."""

    def phase_ends(self, phase: str, begin: float, end: float) -> None: ...

    def step_ends(self, step: int, facts: Json) -> None:
        """Called when a step has finished.

        `facts` has the keys begin (a time of perf_counter), iteration_s, data_s, loss, num_right, num_answers,
        num_samples and sent_bytes (bytes that the comm has sent since the run's start).
        """

    def flush(self) -> None:
        """Called when a checkpoint is written: records so far must survive if the process is killed."""

    def steps_end(self) -> None:
        """Called after the last step, before the final synchronisation and evaluation."""

    def pause(self) -> None:
        """Stop measuring until `resume` is called. Pauses serve to compare steps with and without measurement."""

    def resume(self) -> None: ...

    def run_ends(self) -> None:
        """Called at the end of the run, also after a failure."""

    def report_fields(self) -> Json:
        """Return this observer's fields of the WorkerReport; called after a successful run."""
        return {}


class Observers:
    """All observers of a training loop, called in order (`run_ends` in reverse order).

    The first observer writes the worker's file. Because its `run_ends` is called last, it can still write the last
    lines of the other observers.
    """

    def __init__(
        self,
        members: Sequence[Observer] = (),
        synchronize: Callable[[], None] | None = None,
        *,
        steps_per_block: int = 0,
    ) -> None:
        """Combine the observers `members`.

        `synchronize` waits for an asynchronous device, so that each phase includes its work on the device. If
        `steps_per_block` is not 0, steps form blocks of this size, and observers run only in some of the blocks (see
        `is_measured`).
        """
        self.members = self._all = tuple(members)
        # Only these observers need exact phases, which require a wait for the device.
        self._of_phases = tuple(filter(_watches_phases, self.members))
        self._synchronize = synchronize
        self._steps_per_block = steps_per_block

    def run_begins(self, facts: RunFacts) -> None:
        for member in self.members:
            member.run_begins(facts)

    def step_begins(self, step: int) -> None:
        ACTIVITY.begin_step(step)
        if self._steps_per_block and step % self._steps_per_block == 0:
            self._switch(is_on=is_measured(step, self._steps_per_block))
        for member in self.members:
            member.step_begins(step)

    def begin_phase(self, phase: str) -> float:
        """Begin a phase and return its start time."""
        ACTIVITY.enter(phase)
        for member in self.members:
            member.phase_begins(phase)
        return time.perf_counter()

    def end_phase(self, phase: str, begin: float) -> None:
        """End the phase that began at `begin`."""
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

    def step_ends(self, step: int, facts: Json) -> None:
        for member in self.members:
            member.step_ends(step, facts)

    def flush(self) -> None:
        for member in self._all:
            member.flush()

    def steps_end(self) -> None:
        for member in self._all:
            member.steps_end()

    def run_ends(self) -> None:
        with ExitStack() as stack:  # calls the remaining observers even if one raises
            for member in self._all:
                stack.callback(member.run_ends)

    def report_fields(self) -> Json:
        return {name: value for member in self._all for name, value in member.report_fields().items()}

    def _switch(self, *, is_on: bool) -> None:
        for member in self._all:
            (member.resume if is_on else member.pause)()
        self.members = self._all if is_on else ()
        self._of_phases = tuple(filter(_watches_phases, self.members))


def is_measured(step: int, steps_per_block: int) -> bool:
    """Return whether the block of `steps_per_block` steps that contains `step` is measured.

    The first and the last of every four blocks are measured. In this order, a steady drift of the machine's speed
    affects measured and unmeasured blocks equally.
    """
    return step // steps_per_block % 4 in (0, 3)


def _watches_phases(member: Observer) -> bool:
    cls = type(member)
    return cls.phase_ends is not Observer.phase_ends or cls.before_phase_ends is not Observer.before_phase_ends


NO_OBSERVERS = Observers()
