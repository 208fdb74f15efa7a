"""Fault injection: slow down, kill, hang or stop workers, to test how such faults are detected.

slow:rank=2,ms=200,phase=backward     every step of worker 2 sleeps 200 ms in backward
slow:rank=1,factor=1.5                worker 1 sleeps half as long as it works, in every phase
kill:rank=3,step=50                   worker 3 ends itself with SIGKILL when step 50 begins
hang:rank=1,step=20                   worker 1 stops responding when step 20 begins, but its process runs
stop:rank=1,step=20                   worker 1 stops its process with SIGSTOP when step 20 begins
raise:rank=1,step=20                  worker 1 raises an exception when step 20 begins
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.measure.observer import WORK_PHASES, Observer, RunFacts
from paceline.parsing import whole_number

DEFAULT_PHASE = "backward"  # in which slow:...,ms=... sleeps if no phase is given
ALLOWED = {
    "slow": ("rank", "ms", "factor", "phase"),
    **dict.fromkeys(("kill", "hang", "stop", "raise"), ("rank", "step")),
}
MOST_MS = 60_000  # a minute in every step
MOST_FACTOR = 1000
MOST_OVERSLEPT_S = 0.0002  # if a sleep took too long, the next one is shortened by at most this
NAP_S = 0.0002  # longest single call of time.sleep; longer sleeps are divided
UNRECORDED_STEP = 1 << 62  # reported to the comm as step number if only the injector listens, not the recorder
EXAMPLE = "slow:rank=2,ms=200,phase=backward"


@dataclass(frozen=True, kw_only=True)
class Injection:
    """A fault to inject into one worker. Steps count from 0."""

    kind: str  # slow, kill, hang, stop, raise
    rank: int
    step: int = 0  # in which the worker fails
    sleep_s: float = 0.0  # sleep in every step
    factor: float = 1.0  # how many times as long the worker's computation takes
    phase: str = ""  # phase of each step in which the worker sleeps; empty for all phases

    @staticmethod
    def parse(text: str) -> Injection:
        """Parse `KIND:key=value,...`. Raises UsageError if the text is invalid."""
        kind, _, rest = text.partition(":")
        if kind not in ALLOWED:
            raise unknown(f"injection in --inject {text!r}:", kind, ALLOWED)
        given = _values(text, kind, rest)
        rank = _whole(text, "rank", given)
        if kind != "slow":
            return Injection(kind=kind, rank=rank, step=_whole(text, "step", given))
        if ("ms" in given) == ("factor" in given):
            raise UsageError(f"--inject {text!r} needs either ms=... or factor=..., as in {EXAMPLE}")
        phase = given.get("phase", "")
        if phase and phase not in WORK_PHASES:
            raise unknown(f"phase in --inject {text!r}:", phase, WORK_PHASES)
        if "ms" in given:
            sleep_s = _number(text, "ms", given["ms"], above=0, most=MOST_MS) / 1000
            return Injection(kind=kind, rank=rank, sleep_s=sleep_s, phase=phase or DEFAULT_PHASE)
        factor = _number(text, "factor", given["factor"], above=1, most=MOST_FACTOR)
        return Injection(kind=kind, rank=rank, factor=factor, phase=phase)


def check_injections(texts: Sequence[str], *, num_workers: int, total_steps: int) -> None:
    """Raise UsageError if an injection names a rank or step that the run does not have."""
    for text in texts:
        injection = Injection.parse(text)
        if injection.rank >= num_workers:
            raise UsageError(
                f"--inject {text!r} names worker {injection.rank}, but there are workers 0 to {num_workers - 1} only"
            )
        if injection.step >= total_steps:
            raise UsageError(
                f"--inject {text!r} names step {injection.step}, but the run has steps 0 to {total_steps - 1} only"
            )


def nap(seconds: float) -> None:
    """Sleep for `seconds`, in many short sleeps.

    After one long sleep, a CPU core is slow at first, which would delay the worker further.
    """
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        time.sleep(min(left, NAP_S))


class Injector(Observer):
    """Observer of the training loop that applies injections to this worker.

    The injector also listens to the worker's comms for blocked times, because the factor of a slowdown does not apply
    to the time in which the worker is blocked in communication.
    """

    def __init__(
        self, injections: Sequence[Injection], comms: Sequence[Any], sleep: Callable[[float], None] = nap
    ) -> None:
        self._injections = list(injections)
        self._comms = list(comms)
        self._listeners: list[tuple[Any, _Listener]] = []
        self._sleep = sleep
        self._blocked: list[tuple[float, float]] = []  # (begin, end) of blocked times since the last phase ended
        self._is_new_step = dict.fromkeys(WORK_PHASES, True)
        self._pending_sleep_s = dict.fromkeys(WORK_PHASES, 0.0)

    def run_begins(self, facts: RunFacts) -> None:  # noqa: ARG002
        for comm in self._comms:
            comm.listener = _Listener(comm.listener, self._blocked.append)
            self._listeners.append((comm, comm.listener))

    def step_begins(self, step: int) -> None:
        self._is_new_step = dict.fromkeys(WORK_PHASES, True)
        for injection in self._injections:
            if injection.kind != "slow" and injection.step == step:
                _fail(injection.kind, step)

    def before_phase_ends(self, phase: str, elapsed_s: float) -> None:
        if phase not in WORK_PHASES:
            return
        now = time.perf_counter()
        began = now - elapsed_s
        for comm in self._comms:
            comm.settle(now)  # report blocked times of DDP in backward now, so that they do not include the sleep
        own_s = elapsed_s - sum(end - max(begin, began) for begin, end in self._blocked if end > began)
        for injection in self._injections:
            if injection.kind == "slow" and injection.phase in ("", phase):
                self._pending_sleep_s[phase] += (injection.factor - 1) * max(own_s, 0.0)
                self._pending_sleep_s[phase] += injection.sleep_s if self._is_new_step[phase] else 0.0
        self._is_new_step[phase] = False
        self._sleep_for_injections(phase)

    def phase_ends(self, phase: str, begin: float, end: float) -> None:  # noqa: ARG002
        self._blocked.clear()

    def run_ends(self) -> None:
        for comm, listener in self._listeners:
            comm.listener = listener.before

    def _sleep_for_injections(self, phase: str) -> None:
        """Sleep for the time that injections have added to a phase.

        If a sleep takes too long, the next sleep is shortened, but by at most MOST_OVERSLEPT_S. Without this limit, one
        long sleep on a busy machine would replace the sleeps of the following steps, and only some steps would be slow.
        """
        if self._pending_sleep_s[phase] > 0:
            begin = time.perf_counter()
            self._sleep(self._pending_sleep_s[phase])
            self._pending_sleep_s[phase] = max(
                self._pending_sleep_s[phase] - (time.perf_counter() - begin), -MOST_OVERSLEPT_S
            )


class _Listener:
    """Comm listener that reports blocked times to the injector and events to the recorder.

    `before` is the recorder, or None if there is no recorder. The recorder receives only the events of steps that it
    records.
    """

    def __init__(self, before: Any, on_blocked: Callable[[tuple[float, float]], None]) -> None:
        self.before = before
        self._on_blocked = on_blocked

    @property
    def step(self) -> int:
        return int(self.before.step) if self._is_recording else UNRECORDED_STEP

    @property
    def _is_recording(self) -> bool:
        return self.before is not None and self.before.step >= 0

    def op(self, op: str, nbytes: int, peer: int | None, tag: int, begin: float, end: float, number: int, medium: str,
           step: int) -> None:  # fmt: skip
        if step != UNRECORDED_STEP:
            self.before.op(op, nbytes, peer, tag, begin, end, number, medium, step)

    def blocked(
        self, op: str, peer: int | None, tag: int, begin: float, end: float, number: int, *, is_busy: bool = False
    ) -> None:
        self._on_blocked((begin, end))
        if self._is_recording:
            self.before.blocked(op, peer, tag, begin, end, number, is_busy=is_busy)


def _fail(kind: str, step: int) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "raise":
        raise RuntimeError(f"fault injected in step {step}")
    while kind == "hang":  # the other workers stop at the time limit of their comm
        time.sleep(3600)


def _values(text: str, kind: str, rest: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in rest.split(","):
        key, equals, value = word.strip().partition("=")
        if not equals or not value:
            raise UsageError(f"--inject {text!r} is not KIND:key=value,...; an example is {EXAMPLE}")
        if key not in ALLOWED[kind]:
            raise unknown(f"key in --inject {text!r}:", key, ALLOWED[kind])
        if key in given:
            raise UsageError(f"--inject {text!r} gives {key} twice")
        given[key] = value
    return given


def _whole(text: str, key: str, given: dict[str, str]) -> int:
    value = given.get(key)
    if value is None:
        raise UsageError(f"--inject {text!r} needs {key}=...")
    number = whole_number(value)
    if number is None:
        raise UsageError(f"--inject {text!r}: {key} must be a whole number, 0 or more, not {value!r}")
    return number


def _number(text: str, key: str, value: str, *, above: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (number > above and math.isfinite(number)):
        raise UsageError(f"--inject {text!r}: {key} must be a number above {above:g}, not {value!r}")
    if number > most:
        raise UsageError(
            f"--inject {text!r}: {key} must be at most {most:g}; use hang:rank=... for a worker that stops"
        )
    return number
