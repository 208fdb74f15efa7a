"""Tuning with workers that nobody started: rungs, the winner, what is stored when it ends early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Task
from paceline.present.studies.tune import rung_words
from paceline.recipe import Recipe, load_recipe
from paceline.results.study import Best, TuneResult
from paceline.runs import list_runs
from paceline.study.candidates import Space
from paceline.study.engine import run_study
from paceline.study.halving import Margins
from paceline.study.tune import Tune

SPACE = Space(strategies=("ring", "overlap", "local-sgd"), buckets_mb=(0.1, 1.0), codecs=("fp32", "bf16"), periods=(4,))
RECIPE = load_recipe("lenet5-mnist").replace({"strategy": "all-reduce", "train.iterations": 50})
# Seconds per step and test accuracy of whoever is not named: 1.0 and 0.8.
SPEEDS = {"overlap:bucket_mb=0.1+bf16": (0.5, 0.8), "local-sgd:sync_every=4": (0.2, 0.3), "ring": (0.7, 0.8)}


def answer(task: Task, _: int) -> list[dict[str, Any]]:
    time_s, accuracy = SPEEDS.get(task.arguments["strategy"], (1.0, 0.8))
    steps = task.arguments["recipe"].train.iterations
    return [made_up_worker(rank, [time_s] * steps, test_accuracy=accuracy) for rank in range(task.num_workers)]


def study_of(recipe: Recipe = RECIPE, **changes: Any) -> Tune:
    return Tune.prepare(recipe, SPACE, **{"margins": Margins(), "eta": 3, "repeats": 2, **changes})


def tuned(
    out: Path, reply: Callable[[Task, int], list[dict[str, Any]]] = answer
) -> tuple[TuneResult, Path, MadeUpLauncher]:
    launcher = MadeUpLauncher(reply)
    outcome = run_study(study_of(), launching(launcher), Silent(), out)
    assert outcome is not None
    assert isinstance(outcome.result, TuneResult)
    return outcome.result, outcome.folder, launcher


def best_candidate(study: TuneResult) -> Best:
    assert study.best is not None
    return study.best


def test_a_rung_is_one_sentence(tmp_path: Path) -> None:
    study, _, _ = tuned(tmp_path)
    words = "rung 1, 17 steps, judged by test accuracy (margin 1.5 points): 4 of 8 passed (3 slower, 1 less accurate)"
    assert rung_words(study.rungs[0]) == words


def test_the_fastest_that_learns_as_well_is_chosen(tmp_path: Path) -> None:
    study, folder, _ = tuned(tmp_path)
    assert best_candidate(study).label == "overlap:bucket_mb=0.1+bf16"
    assert best_candidate(study).versus_reference == pytest.approx(0.5)
    ends = {row.label: row.end for row in study.rungs[0].rows}
    assert ends["local-sgd:sync_every=4"] == "less accurate"
    best = Recipe.from_toml((folder / "best.toml").read_text())
    assert best.strategy == "overlap:bucket_mb=0.1+bf16"
    assert best.replace({"strategy": RECIPE.strategy}).train == RECIPE.train
    assert "--strategy overlap:bucket_mb=0.1+bf16" in str(best_candidate(study).command)


def test_rungs_are_short_first_and_only_finalists_are_stored(tmp_path: Path) -> None:
    study, folder, launcher = tuned(tmp_path)
    assert [table.steps for table in study.rungs] == [17, 50]
    first, last = (len(table.rows) for table in study.rungs)
    assert first == len(study_of().candidates.entries)
    assert last < first
    steps = [task.arguments["recipe"].train.iterations for task in launcher.tasks]
    assert steps == [17] * (2 * first) + [50] * (2 * last)
    assert len(list((folder / "runs").iterdir())) == 2 * last
    # Rounds have seeds of their own, and every other one runs backwards.
    labels = [task.arguments["strategy"] for task in launcher.tasks[: 2 * first]]
    assert labels[:first] == labels[first:][::-1]
    assert {task.arguments["recipe"].seed for task in launcher.tasks} == {0, 1}


def test_a_candidate_that_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    def reply(task: Task, number: int) -> list[dict[str, Any]]:
        if task.arguments["strategy"] == "ring":
            raise WorkerError(1, "died: on purpose")
        return answer(task, number)

    study, _, launcher = tuned(tmp_path, reply)
    rows = {row.label: row for row in study.rungs[0].rows}
    assert rows["ring"].end == "failed"
    assert "on purpose" in str(rows["ring"].reason)
    assert [task.arguments["strategy"] for task in launcher.tasks].count("ring") == 1
    assert best_candidate(study).label == "overlap:bucket_mb=0.1+bf16"


def test_without_its_reference_there_is_nothing_to_hold_to(tmp_path: Path) -> None:
    def reply(task: Task, number: int) -> list[dict[str, Any]]:
        if task.arguments["strategy"] == "all-reduce":
            raise WorkerError(0, "died: on purpose")
        return answer(task, number)

    with pytest.raises(RunError, match="reference strategy all-reduce failed"):
        tuned(tmp_path, reply)
    assert list_runs(tmp_path)[0].status == "failed"


@pytest.mark.parametrize("at", [3, 20])
def test_an_interrupted_study_keeps_what_it_has(tmp_path: Path, at: int) -> None:
    def reply(task: Task, number: int) -> list[dict[str, Any]]:
        if number == at:
            raise KeyboardInterrupt
        return answer(task, number)

    with pytest.raises(KeyboardInterrupt) as caught:
        tuned(tmp_path, reply)
    [stored] = list_runs(tmp_path)
    assert stored.status == "interrupted"
    assert isinstance(stored.content, TuneResult)
    assert stored.content.best is None
    assert len(stored.content.rungs) == (0 if at == 3 else 1)
    assert stored.content.results
    assert str(stored.folder) in caught.value.__notes__[0]


def test_the_reference_wins_where_nothing_is_faster(tmp_path: Path) -> None:
    def reply(task: Task, _: int) -> list[dict[str, Any]]:
        time_s = 0.5 if task.arguments["strategy"] == "all-reduce" else 1.0
        return [made_up_worker(rank, [time_s] * 5, test_accuracy=0.8) for rank in range(task.num_workers)]

    study, _, _ = tuned(tmp_path, reply)
    assert best_candidate(study).label == "all-reduce"


@pytest.mark.parametrize(
    "recipe, changes, words",
    [(RECIPE.replace({"workers": 1}), {}, "one worker"), (RECIPE, {"eta": 1}, "--eta")],
)
def test_wrong_requests_are_refused_before_anything_starts(recipe: Recipe, changes: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        study_of(recipe, **changes)
