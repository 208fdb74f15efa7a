"""Progress events of a worker, a few times per second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from paceline.measure.observer import Observer, Row, RunFacts

INTERVAL_S = 0.2
WINDOW_S = 2.0  # window for throughput and time blocked in the comm
MOST_STEPS = 200  # in a window


class _Step(NamedTuple):
    end: float
    num_samples: int
    num_right: int
    num_answers: int
    blocked_s: float  # since the run's start, in steps whose operations were recorded
    recorded_s: float  # duration of those steps


class Live(Observer):
    """Emits progress events, at most one per INTERVAL_S: step, throughput, and share of time blocked in the comm."""

    def __init__(
        self,
        emit: Callable[[Row], None],
        *,
        log_every: int = 0,
        waited: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
        more: Callable[[], Row] = dict,
    ) -> None:
        """`more` returns fields to add to each event; `waited` returns the seconds blocked in the comm so far, and the
        duration of the steps in which that was recorded."""
        self._emit, self._log_every, self._waited, self._more = emit, log_every, waited, more
        self._in_comm_percent: float | None = None
        self._recent: deque[_Step] = deque(maxlen=MOST_STEPS)
        self._emitted_at = float("-inf")
        self._last: Row | None = None  # fields of the last step

    def run_begins(self, facts: RunFacts) -> None:
        self._facts = facts
        self._recent.append(_Step(time.perf_counter(), 0, 0, 0, *self._waited()))

    def step_ends(self, step: int, facts: Row) -> None:
        now = time.perf_counter()
        self._recent.append(_Step(now, facts["num_samples"], facts["num_right"], facts["num_answers"], *self._waited()))
        is_log = self._facts.rank == 0 and self._log_every > 0 and (step + 1) % self._log_every == 0
        self._last = {
            "rank": self._facts.rank,
            "step": step + 1,
            "total_steps": self._facts.total_steps,
            "epoch": step // self._facts.steps_per_epoch + 1,
            "iteration": step % self._facts.steps_per_epoch + 1,
            "loss": facts["loss"],
        }
        if is_log or now - self._emitted_at >= INTERVAL_S:
            self._emit_event("log" if is_log else "progress", now)

    def steps_end(self) -> None:
        """Emit a last event: the run may be short, or end early at its target."""
        if self._last is not None:
            self._emit_event("progress", self._recent[-1].end)

    def _emit_event(self, kind: str, now: float) -> None:
        self._emitted_at = now
        self._emit({"kind": kind, **(self._last or {}), **self._recently(now), **self._more()})

    def _recently(self, now: float) -> Row:
        while len(self._recent) > 2 and self._recent[1].end < now - WINDOW_S:
            self._recent.popleft()
        first, *steps = self._recent
        elapsed_s = max(now - first.end, 1e-9)
        answers = sum(step.num_answers for step in steps)
        recorded_s = steps[-1].recorded_s - first.recorded_s
        if recorded_s > 0:  # in a long run few steps are recorded: keep the last value until then
            self._in_comm_percent = 100 * (steps[-1].blocked_s - first.blocked_s) / recorded_s
        return {
            "accuracy": sum(step.num_right for step in steps) / answers if answers else None,
            "samples_per_s": sum(step.num_samples for step in steps) / elapsed_s,
            "in_comm_percent": self._in_comm_percent,
        }
