"""Injections: what is understood, what is refused, and what happens to the worker."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.measure import inject
from paceline.measure.inject import Injection, Injector, check_injections


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("slow:rank=2,ms=200,phase=backward", Injection(kind="slow", rank=2, sleep_s=0.2, phase="backward")),
        ("slow:rank=2,ms=0.5", Injection(kind="slow", rank=2, sleep_s=0.0005, phase="backward")),
        ("slow:rank=1,factor=1.5", Injection(kind="slow", rank=1, factor=1.5)),
        ("slow:factor=1.5, rank=1, phase=data", Injection(kind="slow", rank=1, factor=1.5, phase="data")),
        ("kill:rank=3,step=50", Injection(kind="kill", rank=3, step=50)),
        ("hang:rank=1,step=20", Injection(kind="hang", rank=1, step=20)),
    ],
)
def test_what_is_understood(text: str, expected: Injection) -> None:
    assert Injection.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown injection"),
        ("slwo:rank=1,ms=3", "did you mean 'slow'"),
        ("slow", "is not KIND:key=value"),
        ("slow:rank=1,ms", "is not KIND:key=value"),
        ("slow:rank=1,ms=", "is not KIND:key=value"),
        ("slow:ms=200", "needs rank="),
        ("slow:rank=one,ms=200", "rank must be a whole number"),
        ("slow:rank=-1,ms=200", "rank must be a whole number"),
        ("slow:rank=1", "either ms=... or factor="),
        ("slow:rank=1,ms=3,factor=2", "either ms=... or factor="),
        ("slow:rank=1,ms=0", "ms must be a number above 0"),
        ("slow:rank=1,ms=inf", "ms must be a number above 0"),
        ("slow:rank=1,ms=nan", "ms must be a number above 0"),
        ("slow:rank=1,factor=1", "factor must be a number above 1"),
        ("slow:rank=1,factor=quick", "factor must be a number above 1"),
        ("slow:rank=1,ms=3,phase=backwards", "did you mean 'backward'"),
        ("slow:rank=1,ms=3,phase=evaluation", "unknown phase"),
        ("slow:rank=1,ms=3,step=4", "unknown key"),
        ("slow:rank=1,ms=3,colour=red", "'colour'; known: factor, ms, phase, rank"),
        ("slow:rank=1,ms=1e9", "ms must be at most 60000"),
        ("slow:rank=1,factor=1e9", "factor must be at most 1000"),
        ("slow:rank=1,rank=2,ms=3", "gives rank twice"),
        ("kill:rank=1", "needs step="),
        ("kill:rank=1,step=1.5", "step must be a whole number"),
        ("hang:rank=1,ms=3", "unknown key"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason.replace(".", r"\.")):
        Injection.parse(text)


def test_ranks_and_steps_must_exist() -> None:
    check_injections(["kill:rank=3,step=49", "slow:rank=0,ms=1"], num_workers=4, total_steps=50)
    with pytest.raises(UsageError, match="names worker 4, but there are workers 0 to 3 only"):
        check_injections(["slow:rank=4,ms=1"], num_workers=4, total_steps=50)
    with pytest.raises(UsageError, match="names step 50, but the run has steps 0 to 49 only"):
        check_injections(["slow:rank=0,ms=1", "hang:rank=3,step=50"], num_workers=4, total_steps=50)


class Sleeper:
    """Sleeps in no time: the clock that the injector looks at moves on instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, late_s: float = 0.0) -> None:
        self.now, self.slept, self.late_s = 100.0, [], late_s
        monkeypatch.setattr(inject, "time", SimpleNamespace(perf_counter=lambda: self.now, sleep=self))

    def __call__(self, seconds: float) -> None:
        self.slept.append(round(seconds, 9))
        self.now += seconds + self.late_s


def injector(*texts: str, sleep: Any, comms: Any = ()) -> Injector:
    made = Injector([Injection.parse(text) for text in texts], comms, sleep)
    made.run_begins(None)  # type: ignore[arg-type]
    return made


def phase(made: Injector, sleeper: Sleeper, name: str, seconds: float) -> None:
    begin = sleeper.now
    sleeper.now += seconds
    made.before_phase_ends(name, seconds)
    made.phase_ends(name, begin, sleeper.now)


def test_milliseconds_are_slept_once_a_step_in_their_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    made = injector("slow:rank=0,ms=200,phase=backward", sleep=sleeper)
    for step in range(2):
        made.step_begins(step)
        for name in ("data", "forward", "backward", "forward", "backward", "optimizer", "evaluation"):
            phase(made, sleeper, name, 1.0)
    assert sleeper.slept == [0.2, 0.2]


def test_a_factor_sleeps_in_proportion_to_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch)
    made = injector("slow:rank=0,factor=1.5", sleep=sleeper)
    made.step_begins(0)
    for name, seconds in (("data", 1.0), ("forward", 2.0), ("backward", 4.0), ("optimizer", 0.5), ("evaluation", 9.0)):
        phase(made, sleeper, name, seconds)
    assert sleeper.slept == [0.5, 1.0, 2.0, 0.25]


def test_a_factor_does_not_grow_with_what_was_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in steps of which the other listener wants to hear nothing."""
    sleeper = Sleeper(monkeypatch)
    heard: list[Any] = []
    settled: list[float] = []
    other = SimpleNamespace(
        step=3, op=lambda *given: heard.append(given), blocked=lambda *given, **_: heard.append(given)
    )
    comm = SimpleNamespace(listener=other, settle=lambda end: settled.append(end))
    made = injector("slow:rank=0,factor=2", sleep=sleeper, comms=[comm])
    made.step_begins(3)
    for wanted in (3, -1):
        other.step = wanted
        now = sleeper.now
        comm.listener.blocked("all_reduce", None, 0, now - 9.0, now, 7)  # before the phase
        comm.listener.blocked("all_reduce", None, 0, now + 1.0, now + 4.0, 8)
        comm.listener.op("all_reduce", 4, None, 0, now, now + 4.0, 8, "network", comm.listener.step)
        phase(made, sleeper, "backward", 5.0)
    assert sleeper.slept == [2.0, 2.0]
    assert [given[-1] for given in heard] == [7, 8, 3]
    assert settled == [105.0, 112.0]  # when backward had ended, before the sleep
    made.run_ends()
    assert comm.listener is other


def test_a_sleep_that_lasted_too_long_shortens_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper(monkeypatch, late_s=0.0001)
    made = injector("slow:rank=0,factor=1.5,phase=forward", sleep=sleeper)
    for step in range(3):
        made.step_begins(step)
        phase(made, sleeper, "forward", 0.002)
    assert sleeper.slept == [0.001, 0.0009, 0.0009]
    sleeper.late_s = 0.3
    for step in range(3):
        made.step_begins(step)
        phase(made, sleeper, "forward", 0.002)
    assert sleeper.slept[3:] == [0.0009, 0.0008, 0.0008]  # a busy machine does not make it skip its sleeps


def test_a_sleep_really_sleeps() -> None:
    made = injector("slow:rank=0,ms=20,phase=data", sleep=time.sleep)
    made.step_begins(0)
    begin = time.perf_counter()
    made.before_phase_ends("data", 0.0)
    assert time.perf_counter() - begin >= 0.02


def test_a_worker_ends_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(inject, "_fail", lambda kind, _: ended.append(kind))
    made = injector("kill:rank=0,step=2", "hang:rank=0,step=3", sleep=time.sleep)
    for step in range(5):
        made.step_begins(step)
    assert ended == ["kill", "hang"]
