"""`paceline verify` detects wrong strategies, and names the step, tensor and worker of the first difference."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import TESTS
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.study.judges import EXACT_TOLERANCE
from paceline.study.verify import cases, verify


def judge(pool: LocalPool, name: str, world_size: int) -> dict[str, Any]:
    todo = cases([f"{TESTS / 'wrong_strategies.py'}:{name}"], [world_size], ["lenet5"])
    seen: list[dict[str, Any]] = []
    [row] = verify(todo, pool, on_case=seen.append)
    assert seen == [row]
    return row


def test_a_mean_that_ignores_samples_is_found_in_the_first_step(pool: LocalPool) -> None:
    row = judge(pool, "UnweightedMean", 3)  # 7 samples over 3 workers
    assert row["guarantee"] == "EXACT"
    assert not row["passed"]
    assert not row["meets_guarantee"]
    assert row["bytes_as_predicted"]
    first = row["first_divergence"]
    assert (first["step"], first["rank"], first["optimizer"]) == (0, 0, "sgd")
    assert first["tensor"].rpartition(".")[0] in {"conv1", "conv2", "linear1", "linear2", "linear3"}
    assert row["max_relative_error"] >= first["error"] > EXACT_TOLERANCE


def test_a_tensor_that_is_not_exchanged_is_named(pool: LocalPool) -> None:
    row = judge(pool, "SkipsLastTensor", 2)
    assert not row["passed"]
    assert row["bytes_as_predicted"]
    first = row["first_divergence"]
    assert (first["step"], first["rank"], first["tensor"]) == (0, 0, "linear3.bias")


def test_a_number_that_is_lost_on_one_worker_is_found(pool: LocalPool) -> None:
    row = judge(pool, "LosesOneNumber", 2)
    assert not row["passed"]
    first = row["first_divergence"]
    assert (first["step"], first["rank"], first["tensor"]) == (1, 1, "conv1.weight")


def test_a_wrong_prediction_of_traffic_is_found(pool: LocalPool) -> None:
    row = judge(pool, "WrongPrediction", 2)
    assert not row["bytes_as_predicted"]
    assert not row["passed"]
    assert not row["meets_guarantee"]
    assert row["max_relative_error"] <= EXACT_TOLERANCE
    assert row["first_divergence"] is None


def test_one_worker_alone_makes_no_mistake(pool: LocalPool) -> None:
    assert judge(pool, "UnweightedMean", 1)["passed"]


def test_a_drift_beyond_the_bound_is_found(pool: LocalPool) -> None:
    row = judge(pool, "PromisesTooMuch", 3)
    assert row["guarantee"] == "PARTIAL"
    assert not row["passed"]
    assert not row["meets_guarantee"]
    assert row["max_relative_error"] > row["tolerance"] == pytest.approx(1.5763 / 100, rel=1e-3)
    assert row["first_divergence"]["step"] == 0


def test_replicas_that_differ_at_the_end_are_found(pool: LocalPool) -> None:
    row = judge(pool, "NeverMeets", 3)
    assert row["guarantee"] == "PARTIAL"
    assert not row["passed"]
    assert row["first_divergence"]["step"] == row["steps"] - 1


def test_a_synchronisation_that_leaves_one_number_off_is_found(pool: LocalPool) -> None:
    row = judge(pool, "ForgetsAWorker", 3)
    assert row["guarantee"] == "PERIODIC"
    assert not row["passed"]
    assert row["bytes_as_predicted"]
    assert (row["first_divergence"]["step"], row["first_divergence"]["rank"]) == (7, 2)


def test_a_strategy_that_one_of_the_world_sizes_does_not_allow_is_refused() -> None:
    with pytest.raises(UsageError, match="exact_every=3 shares the factor 3 with 3 workers"):
        cases(["stepwise:exact_every=3"], [2, 3], ["lenet5"])


def test_rows_come_in_the_order_of_the_cases(pool: LocalPool) -> None:
    todo = cases(["ring", "all-reduce"], [2, 1], ["lenet5"])
    rows = verify(todo, pool, on_case=lambda _: None)
    asked = [(case.strategy, case.world_size) for case in todo]
    assert [(row["strategy"], row["world_size"]) for row in rows] == asked
    assert asked == [("ring", 2), ("all-reduce", 2), ("ring", 1), ("all-reduce", 1)]


def test_a_strategy_that_does_not_exist_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="unknown strategy 'rign'; did you mean 'ring'"):
        cases(["rign"], [2], ["lenet5"])
