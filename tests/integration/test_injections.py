"""Workers slowed down, killed and hung on purpose, from the recipe to what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import ignore_event, on_threads
from paceline.errors import UsageError, WorkerError
from paceline.launch.local import LocalPool
from paceline.measure.observer import WORK_PHASES
from paceline.measure.split import PARTS
from paceline.recipe import Recipe
from paceline.runs import Folder
from paceline.study.entries import make_entry
from paceline.study.preflight import preflight
from paceline.study.run import execute
from paceline.study.run_analysis import analyse_run
from paceline.train.job import train_job

SLEEP_MS = 25  # well above what a busy machine adds to a step of so small a model, every time


def recipe_of(strategy: str = "all-reduce", *injections: str, **changes: Any) -> Recipe:
    few = {
        "workers": 2,
        "train.batch_size": 8,
        "train.iterations": 56,
        "data.test_samples": 8,
        "timeout_s": 20,
        "strategy": strategy,
        "measure.inject": list(injections),
    }
    return Recipe().replace({**few, **{key.replace("__", "."): value for key, value in changes.items()}})


def run_on(launcher: LocalPool, recipe: Recipe, out: Path) -> dict[str, Any]:
    result = execute(
        launcher, recipe, make_entry(recipe.strategy, recipe), folder=Folder(out, "run"), on_event=ignore_event
    )
    assert result is not None
    stored: dict[str, Any] = json.loads((out / "run" / "summary.json").read_text())["result"]
    return stored


def check_sums(result: dict[str, Any]) -> None:
    rows = [*result["split"]["per_worker"], result["split"]["mean"]]
    for row in rows:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_s"], rel=1e-6)
        assert all(row[part] >= -1e-9 for part in PARTS)
        assert set(row["phases_s"]) == set(WORK_PHASES)
    means = {row["rank"]: row["iteration_s"] for row in result["per_worker"]}
    for row in result["split"]["per_worker"]:
        assert row["step_s"] == pytest.approx(means[row["rank"]], rel=1e-6)


def check_links(result: dict[str, Any]) -> None:
    for worker in result["per_worker"]:
        own = [link for link in result["links"] if link["from"] == worker["rank"]]
        assert sum(link["bytes"] for link in own) == pytest.approx(worker["sent_bytes"], abs=len(own))
    for link in result["links"]:
        assert link["bytes"] == link["predicted_bytes"]


@pytest.mark.parametrize("phase", ["forward", "optimizer"])
def test_a_slow_worker_among_threads_is_named(phase: str, tmp_path: Path) -> None:
    recipe = recipe_of("ring", f"slow:rank=1,ms={SLEEP_MS},phase={phase}", comm="threads")
    workers = on_threads(2, train_job, recipe=recipe, strategy="ring", checkpoint="", folder=str(tmp_path))
    found = analyse_run(recipe, workers, tmp_path).files
    assert [(one["rank"], one["phase"], one["steps"]) for one in found["stragglers"]] == [(1, phase, 55)]
    slept_s = found["split"]["per_worker"][1]["phases_s"][phase]
    assert slept_s >= 0.9 * SLEEP_MS / 1000  # a sleep that lasted too long shortens the next one
    # The other one waits meanwhile, and it is known for whom.
    assert found["split"]["per_worker"][1]["caused_waiting_s"] > found["split"]["per_worker"][0]["caused_waiting_s"]


@pytest.mark.parametrize("strategy", ["all-reduce", "ddp", "overlap", "gather-scatter", "parameter-server"])
def test_a_slow_worker_is_named_whatever_the_strategy(strategy: str, pool: LocalPool, tmp_path: Path) -> None:
    result = run_on(pool, recipe_of(strategy, f"slow:rank=1,ms={SLEEP_MS},phase=backward"), tmp_path)
    assert [(one["rank"], one["phase"]) for one in result["stragglers"]] == [(1, "backward")]
    assert result["split"]["per_worker"][1]["phases_s"]["backward"] >= 0.9 * SLEEP_MS / 1000
    check_sums(result)
    check_links(result)
    timeline = result["timeline"]
    assert [lane["rank"] for lane in timeline["lanes"]] == [0, 1]
    names = {(span["kind"], span["name"]) for span in timeline["lanes"][0]["spans"]}
    assert {("phase", "forward"), ("phase", "backward"), ("phase", "optimizer")} <= names
    assert any(kind == "op" for kind, _ in names)


def test_a_factor_slows_every_phase(pool: LocalPool, tmp_path: Path) -> None:
    """Six times as long: no machine is so busy that one of two equal workers takes so much longer all the time."""
    result = run_on(pool, recipe_of("all-reduce", "slow:rank=0,factor=6", train__batch_size=32), tmp_path)
    assert [one["rank"] for one in result["stragglers"]] == [0]
    slow, other = (row["phases_s"] for row in result["split"]["per_worker"])
    assert all(slow[phase] > other[phase] for phase in ("forward", "backward", "optimizer"))


def test_fewer_than_fifty_timed_steps_cannot_tell(pool: LocalPool, tmp_path: Path) -> None:
    recipe = recipe_of("all-reduce", f"slow:rank=1,ms={SLEEP_MS}", train__iterations=50)
    result = run_on(pool, recipe, tmp_path)
    assert (result["timed_steps"], result["stragglers"]) == (49, None)


def test_micro_batches_sleep_once_a_step(pool: LocalPool, tmp_path: Path) -> None:
    changes = {"train__micro_batch_size": 2, "train__iterations": 5}
    result = run_on(pool, recipe_of("overlap", f"slow:rank=1,ms={SLEEP_MS},phase=forward", **changes), tmp_path)
    check_sums(result)
    lane = result["timeline"]["lanes"][1]["spans"]
    long = [span for span in lane if span["name"] == "forward" and span["end_s"] - span["begin_s"] >= 0.02]
    assert len([span for span in lane if span["name"] == "forward"]) == 3 * 2
    assert len(long) >= 3


def test_without_measuring_nothing_is_said(pool: LocalPool, tmp_path: Path) -> None:
    result = run_on(pool, recipe_of(measure__spans=False, train__iterations=3), tmp_path)
    assert (result["split"], result["stragglers"], result["timeline"]) == (None, None, None)
    check_links(result)


@pytest.mark.parametrize("comm", ["torch", pytest.param("shm", marks=pytest.mark.slow)])
def test_a_worker_that_kills_itself_is_named(comm: str, tmp_path: Path) -> None:
    with LocalPool(2) as launcher, pytest.raises(WorkerError, match=r"worker 1 died: .* signal 9") as caught:
        run_on(launcher, recipe_of("all-reduce", "kill:rank=1,step=3", comm=comm), tmp_path)
    assert caught.value.rank == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], "worker 1 died" in summary["error"]) == ("failed", True)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "comm"), [("all-reduce", "torch"), ("ring", "shm")])
def test_a_worker_that_hangs_is_named_when_the_time_is_up(strategy: str, comm: str, tmp_path: Path) -> None:
    recipe = recipe_of(strategy, "hang:rank=1,step=3", comm=comm, workers=3, train__batch_size=9, timeout_s=8)
    with (
        LocalPool(3) as launcher,
        pytest.raises(WorkerError, match="worker 1 did not answer within 8 s: it hangs in step 3") as caught,
    ):
        run_on(launcher, recipe, tmp_path)
    assert caught.value.rank == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("slow:rank=2,ms=1", "there are workers 0 to 1 only"),
        ("kill:rank=1,step=56", "the run has steps 0 to 55 only"),
        ("slow:rank=1,ms=1,phase=lunch", "unknown phase"),
        ("pause:rank=1", "unknown injection"),
    ],
)
def test_mistakes_are_found_before_anything_starts(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        preflight(recipe_of("all-reduce", text))
