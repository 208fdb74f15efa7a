"""Who is named as slow, and who is not."""

from __future__ import annotations

import random
import statistics

import pytest

from made_up_lines import even_steps
from paceline.measure.analysis import analyse
from paceline.measure.stats import interval95_of_median
from paceline.measure.steps import read_steps
from paceline.measure.stragglers import LEAST_STEPS, OwnWork, Straggler, find_stragglers

EVEN = {"data": 0.1, "forward": 1.0, "backward": 2.0, "optimizer": 0.3}
TOTAL_S = sum(EVEN.values())


def steps(
    seed: int, count: int = 100, noise: float = 0.05, factor: float = 1.0, more: OwnWork | None = None
) -> list[OwnWork]:
    """Own work that scatters to the right, as times do; `more` seconds by phase on top of it."""
    chance = random.Random(seed)
    more = more or {}
    return [
        {
            phase: usual_s * factor * (1 + noise * chance.expovariate(1)) + more.get(phase, 0.0)
            for phase, usual_s in EVEN.items()
        }
        for _ in range(count)
    ]


def workers(count: int = 4, **changes: object) -> dict[int, list[OwnWork]]:
    return {rank: steps(rank, **changes) for rank in range(count)}  # type: ignore[arg-type]


def stragglers(own: dict[int, list[OwnWork]]) -> list[Straggler]:
    found = find_stragglers(own)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
def test_nobody_is_named_on_an_even_run(count: int, noise: float) -> None:
    for seed in range(20):
        own = {rank: steps(100 * seed + rank, noise=noise) for rank in range(count)}
        assert find_stragglers(own) == []


def test_wild_times_name_somebody_no_more_often_than_promised() -> None:
    named = [
        bool(find_stragglers({rank: steps(10 * run + rank, noise=1.0) for rank in range(4)})) for run in range(200)
    ]
    assert statistics.fmean(named) <= 0.05


@pytest.mark.parametrize("phase", EVEN)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_slow_phase_is_named_with_its_size(phase: str, count: int) -> None:
    own = workers(count) | {1: steps(9, more={phase: 1.5})}
    (found,) = stragglers(own)
    assert (found.rank, found.phase, found.steps) == (1, phase, 100)
    assert found.excess_s == pytest.approx(1.5, rel=0.05)
    assert found.excess_percent == pytest.approx(100 * 1.5 / TOTAL_S, rel=0.1)
    low, high = found.interval95_percent
    assert 0 < low < found.excess_percent < high


@pytest.mark.parametrize("factor", [1.2, 1.5, 4.0])
def test_a_factor_slows_all_phases(factor: float) -> None:
    (found,) = stragglers(workers() | {2: steps(9, factor=factor)})
    assert (found.rank, found.phase) == (2, "all")
    assert found.excess_percent == pytest.approx(100 * (factor - 1), rel=0.15)


def test_a_factor_of_one_phase_names_that_phase() -> None:
    (found,) = stragglers(workers() | {2: steps(9, more={"backward": 0.5 * EVEN["backward"]})})
    assert (found.rank, found.phase) == (2, "backward")


def test_a_size_is_that_of_the_phase_it_goes_with() -> None:
    own = workers(noise=0.01) | {2: steps(9, noise=0.01, more={"backward": 1.5, "forward": 0.2})}
    (found,) = stragglers(own)
    assert (found.rank, found.phase) == (2, "backward")
    assert found.excess_s == pytest.approx(1.5, rel=0.03)
    assert found.excess_percent == pytest.approx(100 * 1.5 / TOTAL_S, rel=0.03)
    low, high = found.interval95_percent
    assert low < found.excess_percent < high < 100 * 1.7 / TOTAL_S


def test_slow_in_all_phases_but_the_one_in_which_the_other_is_slow() -> None:
    """Two workers: one takes twice as long for everything, the other stands still over its data."""
    own = {0: steps(8, factor=2.0), 1: steps(9, more={"data": 1.2})}
    (found,) = stragglers(own)
    assert (found.rank, found.phase) == (0, "all")
    assert found.excess_s == pytest.approx(TOTAL_S - 1.2, rel=0.1)


def test_slow_for_certain_but_in_no_phase_for_certain() -> None:
    """Three seconds more in every step, in three fifths of the run for backward and otherwise for data."""
    own = workers(noise=0.0)
    for step in range(100):
        more = {"backward": 3.0} if step // 5 % 5 < 3 else {"data": 3.1, "backward": -0.1}
        own[1][step] = {phase: usual_s + more.get(phase, 0.0) for phase, usual_s in EVEN.items()}
    (found,) = stragglers(own)
    assert (found.rank, found.phase) == (1, "all")
    assert found.excess_s == pytest.approx(3.0)


def test_several_slow_workers_are_named_the_slowest_first() -> None:
    own = workers(6) | {1: steps(8, more={"forward": 1.0}), 4: steps(9, more={"data": 3.0})}
    assert [(one.rank, one.phase) for one in stragglers(own)] == [(4, "data"), (1, "forward")]


def test_fewer_than_fifty_steps_cannot_tell() -> None:
    def found(count: int) -> list[Straggler] | None:
        return find_stragglers(workers(count=4) | {1: steps(9, count=count, more={"forward": 5.0})})

    assert found(LEAST_STEPS - 1) is None
    assert [one.rank for one in found(LEAST_STEPS) or []] == [1]


@pytest.mark.parametrize(("excess", "is_named"), [(0.08, False), (0.14, True)])
def test_a_tenth_is_the_limit(excess: float, is_named: bool) -> None:
    own = workers(noise=0.01) | {0: steps(9, noise=0.01, factor=1 + excess)}
    assert bool(find_stragglers(own)) is is_named


def test_a_hiccup_names_nobody() -> None:
    own = workers()
    for step in (20, 21, 22):
        own[1][step] = {**own[1][step], "data": 500.0}
    assert find_stragglers(own) == []


def test_slow_now_and_then_all_through_the_run_is_slow() -> None:
    own = workers()
    for step in range(0, 100, 3):
        own[1][step] = {**own[1][step], "data": 6.0}
    (found,) = stragglers(own)
    assert (found.rank, found.phase) == (1, "data")
    assert found.excess_s == pytest.approx(2.0, rel=0.25)


def test_one_worker_has_nobody_to_be_compared_with() -> None:
    assert find_stragglers({0: steps(0)}) is None
    assert find_stragglers({}) is None


def test_too_few_lines_to_tell_are_null() -> None:
    lines = {rank: even_steps(20, {"forward": 1.0 + rank}) for rank in range(2)}
    found = analyse(
        {rank: read_steps(some) for rank, some in lines.items()}, first=1, last=19, factors=lambda *_: (0.0, 0.0)
    )
    assert found["split"] is not None
    assert found["stragglers"] is None


@pytest.mark.parametrize("count", [6, 10, 20])
def test_the_interval_of_a_median_holds_what_it_promises(count: int) -> None:
    chance = random.Random(count)
    draws = [[chance.expovariate(1) for _ in range(count)] for _ in range(2000)]
    covered = [low <= 0.6931 <= high for low, high in map(interval95_of_median, draws)]
    assert statistics.fmean(covered) >= 0.94
    assert interval95_of_median([1.0] * count) == (1.0, 1.0)
    wide, narrow = interval95_of_median(draws[0], num_together=8), interval95_of_median(draws[0])
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]


def test_own_work_is_found_though_every_step_takes_equally_long() -> None:
    """From lines: all steps last ten seconds, and worker 1 computes where the others wait."""
    usual = {"data": 0.5, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    lines = {rank: even_steps(60, usual | ({"backward": 3.0} if rank == 1 else {})) for rank in range(3)}
    found = analyse(
        {rank: read_steps(some) for rank, some in lines.items()}, first=1, last=59, factors=lambda *_: (0.0, 0.0)
    )
    assert [row["step_s"] for row in found["split"]["per_worker"]] == pytest.approx([10.0] * 3)
    (straggler,) = found["stragglers"]
    assert (straggler["rank"], straggler["phase"], straggler["steps"]) == (1, "backward", 59)
    assert straggler["excess_s"] == pytest.approx(1.0)
    assert straggler["excess_percent"] == pytest.approx(25.0)
    assert straggler["interval95_percent"] == pytest.approx([25.0, 25.0])


def test_timeline_shows_three_steps_from_the_middle() -> None:
    lines = {rank: even_steps(11, {"forward": 1.0}) for rank in range(2)}
    found = analyse(
        {rank: read_steps(some) for rank, some in lines.items()}, first=1, last=10, factors=lambda *_: (0.0, 0.0)
    )
    timeline = found["timeline"]
    assert timeline["first_step"] == 4
    assert [lane["rank"] for lane in timeline["lanes"]] == [0, 1]
    spans = timeline["lanes"][0]["spans"]
    assert [(one["name"], one["kind"]) for one in spans[:3]] == [
        ("forward", "phase"), ("all_reduce", "op"), ("all_reduce", "blocked")]  # fmt: skip
    assert (spans[0]["begin_s"], spans[-1]["end_s"]) == (40.0, 70.0)
    assert (spans[0]["bytes"], spans[1]["bytes"]) == (None, 1000)
    assert len(spans) == 9
