"""Observers of the loop: told in order, left out in turns, ended whatever happens; and what leaving them out shows."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.measure.observer import Observer, Observers, is_measured
from paceline.study.overhead import compare_blocks, steps_per_block


class Diary(Observer):
    def __init__(self, name: str, pages: list[Any], *, fails_at_end: bool = False) -> None:
        self.name, self.pages, self.fails_at_end = name, pages, fails_at_end

    def step_begins(self, step: int) -> None:
        self.pages.append((self.name, "begins", step))

    def before_phase_ends(self, phase: str, elapsed_s: float) -> None:
        assert elapsed_s >= 0
        self.pages.append((self.name, "before end", phase))

    def phase_ends(self, phase: str, begin: float, end: float) -> None:
        assert begin <= end
        self.pages.append((self.name, "end", phase))

    def step_ends(self, step: int, facts: dict[str, Any]) -> None:
        self.pages.append((self.name, "ends", step, facts["loss"]))

    def pause(self) -> None:
        self.pages.append((self.name, "pause"))

    def resume(self) -> None:
        self.pages.append((self.name, "resume"))

    def run_ends(self) -> None:
        self.pages.append((self.name, "run ends"))
        if self.fails_at_end:
            raise ValueError(self.name)


def test_everybody_is_told_in_order() -> None:
    pages: list[Any] = []
    observers = Observers([Diary("a", pages), Diary("b", pages)])
    observers.step_begins(7)
    observers.end_phase("forward", 0.0)
    observers.step_ends(7, {"loss": 2.0})
    assert pages == [
        ("a", "begins", 7),
        ("b", "begins", 7),
        ("a", "before end", "forward"),
        ("b", "before end", "forward"),
        ("a", "end", "forward"),
        ("b", "end", "forward"),
        ("a", "ends", 7, 2.0),
        ("b", "ends", 7, 2.0),
    ]


def test_the_first_ends_last_and_nobody_is_left_running() -> None:
    pages: list[Any] = []
    observers = Observers([Diary("a", pages), Diary("b", pages, fails_at_end=True), Diary("c", pages)])
    with pytest.raises(ValueError, match="b"):
        observers.run_ends()
    assert pages == [("c", "run ends"), ("b", "run ends"), ("a", "run ends")]


def test_a_device_is_waited_for_only_where_somebody_looks() -> None:
    waits: list[int] = []
    Observers([], lambda: waits.append(1)).end_phase("forward", 0.0)
    assert waits == []
    Observers([Diary("a", [])], lambda: waits.append(1)).end_phase("forward", 0.0)
    assert waits == [1]


def test_blocks_take_turns() -> None:
    assert [is_measured(step, 2) for step in range(8)] == [True, True, False, False, False, False, True, True]
    pages: list[Any] = []
    observers = Observers([Diary("a", pages)], steps_per_block=2)
    for step in range(10):
        observers.step_begins(step)
        observers.step_ends(step, {"loss": 0.0})
    assert [page[2] for page in pages if page[1] == "begins"] == [0, 1, 6, 7, 8, 9]
    assert [page[2] for page in pages if page[1] == "ends"] == [0, 1, 6, 7, 8, 9]
    assert [page[1] for page in pages if page[1] in ("pause", "resume")] == [
        *("resume", "pause", "pause", "resume", "resume"),
    ]
    observers.step_begins(12)
    observers.run_ends()
    assert pages[-1] == ("a", "run ends")


def times(num_steps: int, block: int, cost: float) -> list[float]:
    """Steps of a machine that becomes slower all the time, and hiccups."""
    return [
        (1 + step / num_steps) * (50.0 if step % 41 == 0 else 1.0) * (1 + cost * is_measured(step, block))
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("cost", [0.0, 0.02])
def test_the_cost_is_found_on_a_machine_that_slows_down(cost: float) -> None:
    found = compare_blocks([times(240, 5, cost), times(240, 5, cost)], 5)
    assert found is not None
    low, high = found["interval95_percent"]
    assert low <= 100 * cost <= high
    assert high - low < 6
    assert abs(found["cost_percent"] - 100 * cost) < 2.5
    assert found["repeats"] == 22


def test_few_steps_have_no_interval_and_fewer_no_cost() -> None:
    found = compare_blocks([times(8, 1, 0.0)], 1)
    assert found is not None
    assert found.cost_percent == pytest.approx(0.0, abs=20)
    assert (found.interval95_percent, found.repeats) == (None, 2)
    assert compare_blocks([times(5, 1, 0.0)], 1) is None


def test_blocks_are_short() -> None:
    assert [steps_per_block(steps) for steps in (10, 48, 100, 240, 10_000)] == [1, 1, 2, 5, 5]
