"""Judges on made-up evidence: each finds the one thing that its guarantee forbids."""

from __future__ import annotations

import math

import pytest

from helpers import build
from paceline.results import changed
from paceline.results.commands import Divergence, ReplicaReport, ReplicaStep
from paceline.strategies import Guarantee
from paceline.study.judges import JUDGES, Reports, judge


def worker(rank: int, digests: str, final: str = "z", latest: int = 0) -> ReplicaReport:
    steps = [
        ReplicaStep(step=step, digest=digest, tensor="t", relative_error=0.5, relative_to_path=0.5)
        for step, digest in enumerate(digests)
    ]
    metrics = {"staleness_updates": {"max": latest}}
    return ReplicaReport(rank=rank, steps=steps, start_digest="0", final_digest=final, metrics=metrics)


def seen(*workers: ReplicaReport) -> Reports:
    return {"sgd": list(workers)}


PERIODIC = "ring:average=weights"
PARTIAL = "stepwise"  # two workers: at most one length of the longest update apart
BOUNDED = "parameter-server:mode=bounded:max_staleness=1"  # two workers: at most 3 updates late


def test_every_guarantee_has_a_judge() -> None:
    assert set(JUDGES) == set(Guarantee)
    assert build(PERIODIC).guarantee is Guarantee.PERIODIC
    assert build(PARTIAL).guarantee is Guarantee.PARTIAL
    assert build(BOUNDED).guarantee is Guarantee.STALE


def test_periodic_wants_the_same_bits_at_every_synchronisation() -> None:
    verdict = judge(build(PERIODIC), 2, seen(worker(0, "abc"), worker(1, "abc")))
    assert (verdict.is_met, verdict.error, verdict.first_divergence) == (True, 0.0, None)
    verdict = judge(build(PERIODIC), 2, seen(worker(0, "abc"), worker(1, "axc")))
    assert not verdict.is_met
    assert verdict.first_divergence == Divergence(optimizer="sgd", rank=1, step=1, tensor="t", error=math.inf)


def drifting(rank: int, distances: list[float], updates: list[float], final: str = "z") -> ReplicaReport:
    found = worker(rank, "abc"[: len(distances)], final)
    steps = [
        changed(row, distance=distance, longest_update=update)
        for row, distance, update in zip(found.steps, distances, updates, strict=True)
    ]
    return changed(found, steps=steps)


def test_partial_wants_no_replica_further_from_the_mean_than_stated() -> None:
    near, updates = drifting(0, [1.0, 2.0], [1.0, 2.0]), [1.0, 1.0]
    # The longest update of any worker so far is the length that counts.
    verdict = judge(build(PARTIAL), 2, seen(near, drifting(1, [1.0, 2.0], updates)))
    assert (verdict.is_met, verdict.error, verdict.first_divergence) == (True, 1.0, None)
    assert verdict.tolerance == pytest.approx(1.0)
    verdict = judge(build(PARTIAL), 2, seen(near, drifting(1, [1.0, 2.1], updates)))
    assert not verdict.is_met
    first = verdict.first_divergence
    assert first is not None
    assert (first.optimizer, first.rank, first.step, first.tensor) == ("sgd", 1, 1, "t")
    assert first.error == pytest.approx(1.05)
    for wrong in (drifting(1, [1.0, math.nan], updates), drifting(1, [0.0, 0.0], updates, final="y")):
        assert not judge(build(PARTIAL), 2, seen(near, wrong)).is_met
    assert not judge(build(PARTIAL), 2, seen(drifting(0, [0.0], [0.0]), drifting(1, [0.0], [0.0]))).is_met
    idle = [drifting(rank, [0.0], [1.0], final="0") for rank in range(2)]
    assert not judge(build(PARTIAL), 2, seen(*idle)).is_met


def test_stale_wants_no_later_update_than_stated() -> None:
    on_time, late = worker(0, "abc", latest=3), worker(1, "xyz", latest=4)
    assert judge(build(BOUNDED), 2, seen(on_time, worker(1, "xyz", latest=2))).is_met  # on their own ways until the end
    verdict = judge(build(BOUNDED), 2, seen(on_time, late))
    assert not verdict.is_met
    assert verdict.first_divergence is not None
    assert verdict.first_divergence.rank == 1
    assert verdict.first_divergence.tensor == "an update with staleness 4 (3 allowed)"
    assert judge(build("parameter-server:mode=async"), 2, seen(on_time, late)).is_met


@pytest.mark.parametrize("strategy", [PERIODIC, BOUNDED])
def test_the_same_bits_at_the_end_and_not_those_of_the_start(strategy: str) -> None:
    assert judge(build(strategy), 2, seen(worker(0, "abc"), worker(1, "abc"))).is_met
    assert not judge(build(strategy), 2, seen(worker(0, "abc"), worker(1, "abc", final="y"))).is_met
    idle = seen(worker(0, "000", final="0"), worker(1, "000", final="0"))
    assert not judge(build(strategy), 2, idle).is_met


def test_what_promises_nothing_has_to_differ() -> None:
    verdict = judge(build("none"), 2, seen(worker(0, "abc"), worker(1, "xyz")))
    assert (verdict.is_met, verdict.has_guarantee) == (True, False)
