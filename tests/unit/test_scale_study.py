"""A scaling study on made-up runs: points in turn, and whatever fails, what was measured is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from made_up import MadeUpLauncher, Silent, launching
from paceline.errors import RunError, WorkerError
from paceline.launch.base import WorkerPool
from paceline.recipe import Recipe
from paceline.results import Overhead
from paceline.results.study import ScaleResult
from paceline.runs import list_runs
from paceline.study import engine
from paceline.study.engine import StudyOutcome, run_study
from paceline.study.entries import Entry
from paceline.study.scale import Scale
from scale_samples import one_run

BASE = {"data.train_samples": 40, "train.batch_size": 40, "train.iterations": 2, "workers": 3, "strategies": "ring,ddp"}

Troubles = dict[tuple[str, int, int], BaseException]  # by label, workers and how many runs of it went before


@pytest.fixture
def troubles(monkeypatch: pytest.MonkeyPatch) -> Troubles:
    found: Troubles = {}
    counts: dict[tuple[str, int], int] = {}

    def execute(launcher: WorkerPool, recipe: Recipe, entry: Entry, **options: Any) -> Any:
        del launcher, recipe, options
        key = (entry.label, entry.num_workers)
        counts[key] = counts.get(key, 0) + 1
        trouble = found.get((*key, counts[key] - 1))
        if trouble is not None:
            raise trouble
        return one_run(entry.label, entry.num_workers, 0.04 / entry.num_workers * (1 + counts[key] / 1000), 0.001)

    monkeypatch.setattr(engine, "execute", execute)
    cost = Overhead(cost_percent=1.0, interval95_percent=None, repeats=3)
    monkeypatch.setattr(engine, "measure_overhead", lambda launcher, recipe, entries, **_: (entries[0].label, cost))  # noqa: ARG005
    return found


def scale(repeats: int) -> Scale:
    return Scale.prepare(Recipe().replace(BASE), (1, 2, 3), ("strong",), repeats=repeats)


def ran(study: Scale, out: Path, heard: Silent | None = None) -> ScaleResult:
    outcome = run_study(study, launching(MadeUpLauncher()), heard or Silent(), out)
    assert isinstance(outcome, StudyOutcome)
    assert isinstance(outcome.result, ScaleResult)
    assert list_runs(out)[0].content == outcome.result
    return outcome.result


def repeats_of(study: ScaleResult) -> dict[tuple[str, int], int]:
    return {(row.label, row.workers): row.repeats for row in study.results}


@pytest.mark.usefixtures("troubles")
def test_points_take_turns(tmp_path: Path) -> None:
    heard = Silent()
    study = ran(scale(2), tmp_path, heard)
    order = [label for label, repeat in heard.started_rows if repeat == 0]
    assert order == ["one-worker, strong"] + [f"{label} on {n}, strong" for n in (2, 3) for label in ("ring", "ddp")]
    assert [label for label, repeat in heard.started_rows if repeat == 1] == order[::-1]
    assert [(row.label, row.workers) for row in study.results] == [
        ("one-worker", 1), ("ring", 2), ("ring", 3), ("ddp", 2), ("ddp", 3),
    ]  # fmt: skip
    assert all(row.repeats == 2 for row in study.results)
    assert [(row.label, row.workers) for row in study.results if row.measuring] == [("ring", 3)]
    assert (study.status, study.failed, study.num_points) == ("done", [], 5)


def test_a_point_that_fails_loses_no_other(tmp_path: Path, troubles: Troubles) -> None:
    troubles["ring", 3, 1] = WorkerError(1, "died")
    heard = Silent()
    study = ran(scale(3), tmp_path, heard)
    [failed] = study.failed
    assert (failed.label, failed.point, failed.repeat, failed.error) == (
        "ring",
        {"workers": 3, "mode": "strong"},
        2,
        "worker 1 died",
    )
    assert repeats_of(study) == {
        ("one-worker", 1): 3, ("ring", 2): 3, ("ring", 3): 1, ("ddp", 2): 3, ("ddp", 3): 3,
    }  # fmt: skip
    assert heard.started_rows.count(("ring on 3, strong", 2)) == 0  # it is not tried again
    assert heard.warnings == ["ring on 3, strong: failed: worker 1 died; continuing with the others"]
    assert study.status == "done"


def test_the_one_worker_may_fail_too(tmp_path: Path, troubles: Troubles) -> None:
    troubles["one-worker", 1, 0] = WorkerError(0, "died")
    study = ran(scale(1), tmp_path)
    assert len(study.results) == 4
    assert all(row.scaling is not None and row.scaling.speedup is None for row in study.results)


def test_a_study_whose_points_all_fail_says_so(tmp_path: Path, troubles: Troubles) -> None:
    for job in scale(1).jobs:
        troubles[job.entry.label, job.entry.num_workers, 0] = WorkerError(0, "died")
    study = ran(scale(1), tmp_path)
    assert (study.status, study.error) == ("failed", "every point failed")
    assert study.results == []
    assert len(study.failed) == 5


@pytest.mark.parametrize(
    ("trouble", "status"), [(KeyboardInterrupt(), "interrupted"), (RunError("the disk is full"), "failed")]
)
def test_what_was_measured_until_then_is_kept(
    tmp_path: Path, troubles: Troubles, trouble: BaseException, status: str
) -> None:
    troubles["ddp", 2, 1] = trouble
    with pytest.raises(type(trouble)):
        ran(scale(2), tmp_path)
    [stored] = list_runs(tmp_path)
    assert stored.status == status
    assert isinstance(stored.content, ScaleResult)
    assert repeats_of(stored.content) == {
        ("one-worker", 1): 1, ("ring", 2): 1, ("ring", 3): 2, ("ddp", 2): 1, ("ddp", 3): 2,
    }  # fmt: skip
