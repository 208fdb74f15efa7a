"""From what workers measured to results, on made-up workers whose figures are easy to add up."""

from __future__ import annotations

from typing import Any

import pytest

from made_up import made_up_worker
from paceline.recipe import Recipe
from paceline.results import Row, RunResult, changed, convert, to_json
from paceline.results.worker_report import WorkerReport
from paceline.study.entries import make_entry
from paceline.study.run_analysis import CURVE_POINTS
from paceline.study.run_results import combine, compare_rows, fastest_of, run_result

RECIPE = Recipe().replace({"workers": 2})


def result_of(workers: list[dict[str, Any]], text: str = "ring", **changes: Any) -> RunResult:
    recipe = RECIPE.replace(changes)
    reports = [convert(worker, WorkerReport) for worker in workers]
    return run_result(recipe, make_entry(text, recipe), reports, total_s=9.0)


def repeats_of(label: str, means: list[float], text: str = "ring") -> Row:
    """A combined result of repeats with those mean iteration times."""
    runs = []
    for mean in means:
        num_workers = 1 if text == "one-worker" else 2
        run = result_of([made_up_worker(rank, [9.0, mean, mean]) for rank in range(num_workers)], text)
        runs.append(changed(run, label=label))
    return combine(runs)


def test_one_run() -> None:
    workers = [made_up_worker(0, [9.0, 1.0, 3.0, 2.0]), made_up_worker(1, [9.0, 2.0, 2.0, 4.0])]
    result = result_of(workers)
    assert (result["steps"], result["timed_steps"], result["warmup_steps"]) == (4, 3, 1)
    # The first step of each worker is warm-up; the mean is over all steps of all workers.
    assert result["iteration_s"]["mean"] == pytest.approx((1 + 3 + 2 + 2 + 2 + 4) / 6)
    assert result["iteration_s"]["p50"] == 2.0
    # 12 samples in timed steps; workers were busy for 6 and 8 seconds, and all is done when the last one is.
    assert result["samples_per_s"] == pytest.approx(12 / 8)
    # Two epochs of two steps; the slower worker took 17 s, 0.4 s of it for data.
    assert result["epoch_s"] == pytest.approx(17 / 2)
    assert result["epoch_without_data_s"] == pytest.approx((17 - 0.4) / 2)
    assert (result["train_s"], result["evaluation_s"], result["total_s"]) == (17.0, 0.25, 9.0)
    assert to_json(result.final) == {"train_loss": 1.5, "train_accuracy": 0.5, "test_loss": 2.0, "test_accuracy": 0.25}
    assert [row["sent_bytes"] for row in result["per_worker"]] == [100, 101]
    assert [row["iteration_s"] for row in result["per_worker"]] == pytest.approx([2.0, 8 / 3])
    assert (result["strategy"], result["guarantee"], result["comm"], result["workers"]) == ("ring", "EXACT", "torch", 2)


def test_staleness_of_all_workers_together() -> None:
    late = [{"staleness_updates": {"counts": counts}} for counts in ({"0": 3, "10": 1}, {"0": 1, "2": 5})]
    workers = [made_up_worker(rank, [1.0, 1.0], strategy_metrics=late[rank]) for rank in range(2)]
    result = result_of(workers, "parameter-server:mode=async")
    assert result["servers"] == 1
    assert to_json(result.staleness_updates) == {"counts": {"0": 4, "2": 5, "10": 1}, "max": 10, "mean": 2.0}
    plain = result_of([made_up_worker(rank, [1.0, 1.0]) for rank in range(2)])
    assert (plain["servers"], plain["staleness_updates"]) == (0, None)


def test_training_figures_are_weighted_by_samples() -> None:
    many = made_up_worker(0, [1.0, 1.0], num_samples=[3, 3], train_loss=1.0)
    few = made_up_worker(1, [1.0, 1.0], num_samples=[1, 1], train_loss=5.0)
    assert result_of([many, few])["final"]["train_loss"] == pytest.approx(2.0)


def test_figures_that_somebody_lacks_are_not_given() -> None:
    workers = [made_up_worker(0, [1.0, 1.0]), made_up_worker(1, [1.0, 1.0], train_accuracy=None, test_accuracy=None)]
    final = result_of(workers)["final"]
    assert final["train_accuracy"] is None
    assert final["test_accuracy"] is None
    assert final["test_loss"] == 2.0


def test_an_epoch_that_was_not_completed_has_no_time() -> None:
    result = result_of([made_up_worker(0, [1.0], steps_per_epoch=2)], "one-worker")
    assert (result["epoch_s"], result["epoch_without_data_s"]) == (None, None)


@pytest.mark.parametrize(
    ("steps", "warmup", "limit", "timed", "dropped"),
    [(5, 1, None, 4, 1), (5, 0, None, 5, 0), (5, 2, 3, 1, 2), (1, 1, None, 1, 0), (3, 5, None, 3, 0), (5, 2, 2, 2, 0)],
)
def test_warm_up_is_said_as_it_was(steps: int, warmup: int, limit: int | None, timed: int, dropped: int) -> None:
    changes = {"train.warmup_iterations": warmup, "train.timed_iterations": limit}
    result = result_of([made_up_worker(0, [1.0] * steps)], "one-worker", **changes)
    assert (result["timed_steps"], result["warmup_steps"]) == (timed, dropped)


def test_a_curve_is_thinned_and_keeps_the_time() -> None:
    num_steps = 3 * CURVE_POINTS + 1
    workers = [made_up_worker(rank, [1.0 + rank] * num_steps) for rank in range(2)]
    curve = result_of(workers)["curve"]
    assert len({len(values) for values in to_json(curve).values()}) == 1
    assert len(curve["step"]) <= CURVE_POINTS
    assert curve["step"][-1] == num_steps
    assert curve["train_s"][-1] == pytest.approx(2.0 * num_steps)  # a step takes as long as its slowest worker
    assert curve["accuracy"][0] == 0.5


def test_a_curve_of_few_steps_is_whole() -> None:
    worker = made_up_worker(0, [1.0, 2.0, 3.0], num_answers=[0, 0, 0], num_right=[0, 0, 0])
    curve = result_of([worker], "one-worker")["curve"]
    assert curve["step"] == [1, 2, 3]
    assert curve["train_s"] == [1.0, 3.0, 6.0]
    assert curve["loss"] == [3.0, 2.0, 1.0]
    assert curve["accuracy"] == [None, None, None]


def test_bytes_over_steps_are_those_of_all_workers() -> None:
    workers = [made_up_worker(rank, [1.0] * 3, step_sent_bytes=[10, 20, 30 + rank]) for rank in range(2)]
    assert result_of(workers)["curve"]["sent_bytes"] == [20, 40, 61]
    assert "sent_bytes" not in to_json(result_of([made_up_worker(rank, [1.0] * 3) for rank in range(2)]).curve)


def test_a_curve_of_workers_that_stopped_at_different_steps() -> None:
    workers = [
        made_up_worker(0, [1.0, 1.0, 1.0], step_sent_bytes=[5, 10, 15], loss=[4.0, 2.0, 1.0]),
        made_up_worker(1, [2.0], step_sent_bytes=[7], loss=[6.0]),
    ]
    curve = result_of(workers)["curve"]
    assert curve["step"] == [1, 2, 3]
    assert curve["train_s"] == [2.0, 3.0, 4.0]
    assert curve["loss"] == [5.0, 2.0, 1.0]
    assert curve["sent_bytes"] == [12, 17, 22]


def evaluation(step: int, accuracy: float | None) -> dict[str, Any]:
    return {"step": step, "epoch": step // 2, "train_s": float(step), "loss": 1.0, "accuracy": accuracy}


def aimed(*evaluations: dict[str, Any], steps: tuple[int, int] = (4, 4)) -> RunResult:
    workers = [
        made_up_worker(rank, [1.0] * count, step_sent_bytes=[100 * (step + 1) for step in range(count)])
        for rank, count in enumerate(steps)
    ]
    workers[0]["evaluations"] = list(evaluations)
    return result_of(workers, **{"measure.target_accuracy": 0.5})


def test_a_target_that_was_reached() -> None:
    result = aimed(evaluation(2, 0.4), evaluation(4, 0.5))
    assert to_json(result.target) == {
        "accuracy": 0.5,
        "reached": True,
        "step": 4,
        "epoch": 2,
        "train_s": 4.0,
        "sent_bytes": 800,
    }
    assert [row["sent_bytes"] for row in result["evaluations"]] == [400, 800]
    # At their own pace: what all had sent when they stopped.
    assert aimed(evaluation(2, 0.6), steps=(2, 5))["target"]["sent_bytes"] == 200 + 500


def test_a_target_that_was_not_reached() -> None:
    missed = aimed(evaluation(2, 0.4), evaluation(4, 0.3)).target
    assert to_json(missed) == {"accuracy": 0.5, "reached": False, "best": 0.4}
    assert to_json(aimed().target) == {"accuracy": 0.5, "reached": False}
    assert result_of([made_up_worker(0, [1.0])], "one-worker")["target"] is None


def test_targets_of_repeats() -> None:
    early, late, never = aimed(evaluation(2, 0.6)), aimed(evaluation(4, 0.6)), aimed(evaluation(4, 0.45))
    both = combine([early, late])["target"]
    assert (both["reached"], both["train_s"], both["repeats_reached"], both["repeats"]) == (True, 3.0, 2, 2)
    assert (both["step"], both["sent_bytes"]) == (2, 400)  # whole numbers stay what some repeat had
    some = combine([early, never])["target"]
    assert to_json(some) == {"accuracy": 0.5, "reached": False, "best": 0.45, "repeats_reached": 1, "repeats": 2}
    assert combine([result_of([made_up_worker(0, [1.0])], "one-worker")])["target"] is None


def test_how_far_each_is_from_no_agreement_at_all() -> None:
    results = [
        repeats_of("ring", [3.0, 3.0, 3.0]),
        repeats_of("none", [2.0, 2.0, 2.0], "none"),
        repeats_of("one-worker", [9.0, 9.0, 9.0], "one-worker"),
    ]
    results = compare_rows(results)
    assert to_json(results[0].versus_none) == {
        "label": "none",
        "limit_s": 2.0,
        "ratio": 1.5,
        "interval95": pytest.approx([1.5, 1.5]),
    }
    assert results[1]["versus_none"]["ratio"] == 1.0
    assert "versus_none" not in results[2]
    alone = compare_rows([repeats_of("ring", [3.0])])
    assert "versus_none" not in alone[0]


def test_who_learns_less_than_was_asked_for_is_not_the_fastest() -> None:
    quick = changed(repeats_of("quick", [1.0, 1.0, 1.0]), is_within=False)
    results = [quick, changed(repeats_of("sound", [2.0, 2.0, 2.0]), is_within=True)]
    results = compare_rows(results)
    assert [result["versus_fastest"]["verdict"] for result in results] == ["faster", "fastest"]
    assert fastest_of([quick])["label"] == "quick"


def test_the_limit_is_the_slowest_worker_of_those_that_do_not_agree() -> None:
    """Alone, one worker takes 1 s a step and the other 2 s: a ring of both that takes 3 s paid 1 s for agreeing."""
    apart = [result_of([made_up_worker(0, [9.0, 1.0, 1.0]), made_up_worker(1, [9.0, 2.0, 2.0])], "none")] * 3
    results = [repeats_of("ring", [3.0, 3.0, 3.0]), combine(apart)]
    results = compare_rows(results)
    assert (results[0]["versus_none"]["limit_s"], results[0]["versus_none"]["ratio"]) == (2.0, 1.5)
    assert results[0]["versus_none"]["interval95"] == pytest.approx([1.5, 1.5])
    assert results[1]["versus_none"]["ratio"] == 1.0
    assert results[1]["samples_per_s"] == pytest.approx(8 / 4.0)  # and not what the fast one would do by itself


def test_percentiles_that_every_repeat_has() -> None:
    run = result_of([made_up_worker(0, [1.0, 2.0, 3.0])], "one-worker")
    assert set(to_json(run.iteration_s)) == {"mean", "p50", "p90", "p95"}
    assert run["per_worker"][0]["iteration_p90_s"] == pytest.approx(2.9)
    old = changed(run, iteration_s=changed(run.iteration_s, p90=None))
    assert set(to_json(combine([run, old]).iteration_s)) == {"mean", "p50", "p95"}


def test_combining_takes_medians() -> None:
    combined = repeats_of("ring", [5.0, 1.0, 2.0])
    assert combined["iteration_s"]["mean"] == 2.0
    assert combined["iteration_mean_s_repeats"] == [5.0, 1.0, 2.0]
    assert combined["repeats"] == 3
    low, high = combined["iteration_mean_s_interval95"]
    assert 0 < low < 2.0 < high
    assert combined["per_worker"][0]["iteration_s"] == 2.0  # the middle run stands for all
    assert combined["samples_per_s"] == pytest.approx(8 / 4.0)


def test_a_single_repeat_has_no_interval() -> None:
    assert repeats_of("ring", [2.0])["iteration_mean_s_interval95"] is None


def verdicts(results: list[Row]) -> dict[str, str]:
    results[:] = compare_rows(results)
    return {result["label"]: result["versus_fastest"]["verdict"] for result in results}


def test_verdicts_in_words() -> None:
    steady = [1.0, 1.01, 0.99, 1.0]
    results = [
        repeats_of("ring", steady),
        repeats_of("slow", [2 * value for value in steady]),
        repeats_of("same", [1.05, 0.98, 1.02, 1.01]),
        repeats_of("none", [value / 2 for value in steady], "none"),
    ]
    assert verdicts(results) == {"ring": "fastest", "slow": "slower", "same": "no difference", "none": "faster"}
    assert results[1]["versus_fastest"]["ratio"] == pytest.approx(2.0)
    assert results[1]["versus_fastest"]["label"] == "ring"
    assert results[1]["versus_fastest"]["interval95"] == pytest.approx([2.0, 2.0])
    assert "speedup" not in results[0]


def test_one_repeat_cannot_tell() -> None:
    results = [repeats_of("ring", [1.0]), repeats_of("slow", [3.0])]
    assert verdicts(results) == {"ring": "fastest", "slow": "one repeat cannot tell"}
    assert results[1]["versus_fastest"]["interval95"] is None


def test_speed_up_is_over_one_worker() -> None:
    results = [repeats_of("one-worker", [4.0, 8.0], "one-worker"), repeats_of("ring", [2.0, 4.0])]
    assert verdicts(results)["ring"] == "fastest"  # one worker is a limit, not a rival
    assert (results[0]["speedup"], results[0]["efficiency"]) == (1.0, 1.0)
    assert results[1]["speedup"] == pytest.approx(2.0)
    assert results[1]["efficiency"] == pytest.approx(1.0)


def test_where_nobody_agrees_all_are_rivals() -> None:
    assert verdicts([repeats_of("none", [1.0], "none")]) == {"none": "fastest"}
