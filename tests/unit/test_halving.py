"""Successive halving: how long rungs are, who passes, who is best, from figures that nobody measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

import report_samples as samples
from paceline.results import RunResult, changed
from paceline.results.study import Candidate, RungResult
from paceline.study.halving import (
    FINALISTS,
    Guessing,
    Margins,
    Rung,
    best_candidate,
    judge_rung,
    plan_rungs,
    survivors,
)

TEN_CLASSES = Guessing(num_classes=10, num_test_samples=500)
LAST = Rung(number=1, steps=100, repeats=2, num_kept=1, leniency=1.0)


def run(
    label: str, time_s: float, accuracy: float | None = 0.9, loss: float | None = 0.5, guarantee: str = "EXACT"
) -> RunResult:
    made = samples.result(label, time_s)
    first, second = made.per_worker[:2]
    return changed(
        made,
        guarantee=guarantee,
        final=changed(made.final, test_accuracy=accuracy, test_loss=loss),
        per_worker=[
            changed(first, iteration_s=time_s, sent_bytes=10),
            changed(second, iteration_s=time_s / 2, sent_bytes=20),
        ],
    )


def judged(*repeats: list[RunResult], rung: Rung = LAST, **changes: Any) -> RungResult:
    measured = {runs[0].label: runs for runs in repeats}
    arguments = {"reference": "exact", "margins": Margins(), "guessing": TEN_CLASSES, **changes}
    return judge_rung(rung, measured, {}, **arguments)


def ends(table: RungResult) -> dict[str, str]:
    return {row.label: row.end for row in table.rows}


@pytest.mark.parametrize("num_candidates", [1, 3, 5, 13, 40, 200])
@pytest.mark.parametrize("total_steps", [1, 10, 100, 2000])
@pytest.mark.parametrize("eta", [2, 3])
def test_rungs_grow_while_candidates_get_fewer(num_candidates: int, total_steps: int, eta: int) -> None:
    rungs = plan_rungs(num_candidates, total_steps=total_steps, eta=eta, repeats=3, warmup=1, period=16)
    steps, kept = [rung.steps for rung in rungs], [rung.num_kept for rung in rungs]
    assert steps == sorted(steps)
    assert steps[-1] == total_steps
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] == 1
    assert all(number >= FINALISTS for number in kept[:-1])
    assert all((number - 1) % 16 == 0 for number in steps[:-1]), "timed steps are whole periods"
    assert rungs[-1].leniency == 1
    assert rungs[-1].repeats == 3


def test_few_candidates_need_one_rung() -> None:
    assert len(plan_rungs(FINALISTS, total_steps=1000, eta=3, repeats=3, warmup=1, period=4)) == 1
    assert len(plan_rungs(FINALISTS + 1, total_steps=1000, eta=3, repeats=3, warmup=1, period=4)) == 2


def test_who_is_less_accurate_is_out_however_fast() -> None:
    table = judged(
        [run("exact", 1.0), run("exact", 1.0)],
        [run("fast", 0.1, 0.85, guarantee="PERIODIC"), run("fast", 0.1, 0.89, guarantee="PERIODIC")],
        [run("good", 0.5, 0.896, guarantee="LOSSY"), run("good", 0.5, 0.9, guarantee="LOSSY")],
        [run("slow", 0.9, 0.9), run("slow", 0.9, 0.9)],
    )
    assert table.judged_by == "accuracy"
    assert ends(table) == {"exact": "reference", "fast": "less accurate", "good": "kept", "slow": "slower"}
    lost = {row.label: row.lost for row in table.rows}
    assert lost["fast"] == pytest.approx(3.0)
    assert lost["good"] == pytest.approx(0.2)
    assert best_candidate(table).label == "good"


def test_time_is_that_of_the_slowest_worker() -> None:
    table = judged([run("exact", 1.0)])
    assert table.rows[0].iteration_s == 1.0
    assert table.rows[0].sent_bytes == 20


def test_exact_strategies_lose_nothing_but_rounding() -> None:
    table = judged([run("exact", 1.0, 0.9)], [run("also-exact", 0.9, 0.85)])
    assert ends(table)["also-exact"] == "kept"
    assert table.rows[1].lost == 0


def test_margins_are_wider_in_early_rungs() -> None:
    lossy = run("lossy", 0.5, 0.88, guarantee="LOSSY")
    early = Rung(number=1, steps=10, repeats=1, num_kept=4, leniency=9.0)
    assert ends(judged([run("exact", 1.0)], [lossy], rung=early))["lossy"] == "kept"
    assert ends(judged([run("exact", 1.0)], [lossy]))["lossy"] == "less accurate"
    # Margins are what was asked for: with a wider one the same strategy passes the last rung, too.
    assert ends(judged([run("exact", 1.0)], [lossy], margins=Margins(points=2.5)))["lossy"] == "kept"


@pytest.mark.parametrize("accuracy", [None, 0.1, 0.12])
def test_the_loss_judges_where_accuracy_says_nothing(accuracy: float | None) -> None:
    table = judged(
        [run("exact", 1.0, accuracy, 0.50)],
        [run("near", 0.5, accuracy, 0.505, "LOSSY")],
        [run("far", 0.4, accuracy, 0.6, "LOSSY")],
    )
    assert table.judged_by == "loss"
    assert ends(table) == {"exact": "reference", "near": "kept", "far": "less accurate"}
    assert table.rows[1].lost == pytest.approx(1.0)


def test_guessing_is_beaten_by_more_than_its_own_spread() -> None:
    assert not TEN_CLASSES.is_beaten_by(0.13)
    assert TEN_CLASSES.is_beaten_by(0.15)
    assert not Guessing(num_classes=10, num_test_samples=20).is_beaten_by(0.25)
    assert Guessing(num_classes=0, num_test_samples=20).is_beaten_by(0.01)


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_training_that_diverged_has_lost_everything(loss: float | None) -> None:
    table = judged([run("exact", 1.0, None, 0.5)], [run("wild", 0.1, None, loss, "STALE")])
    assert ends(table)["wild"] == "less accurate"


def test_failures_are_rows_and_do_not_go_on() -> None:
    table = judge_rung(
        LAST,
        {"exact": [run("exact", 1.0)]},
        {"broken": "worker 1 died"},
        reference="exact",
        margins=Margins(),
        guessing=TEN_CLASSES,
    )
    assert table.rows[1] == Candidate(label="broken", end="failed", reason="worker 1 died")
    assert survivors(table) == ["exact"]


def test_the_reference_goes_on_however_slow() -> None:
    rung = Rung(number=1, steps=10, repeats=1, num_kept=1, leniency=3.0)
    table = judged([run("exact", 9.0)], [run("a", 1.0)], [run("b", 2.0)], rung=rung)
    assert survivors(table) == ["exact", "a"]


def test_of_those_that_cannot_be_told_apart_the_strongest_guarantee_is_best() -> None:
    exact = [run("exact", 1.00), run("exact", 1.06)]
    lossy = [run("lossy", 1.01, guarantee="LOSSY"), run("lossy", 1.00, guarantee="LOSSY")]
    assert best_candidate(judged(exact, lossy)).label == "exact"
    clearly = [run("lossy", 0.50, guarantee="LOSSY"), run("lossy", 0.53, guarantee="LOSSY")]
    assert best_candidate(judged(exact, clearly)).label == "lossy"
