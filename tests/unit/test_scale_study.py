"""The rounds of a scaling study: in turn, and whatever fails, what was measured is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import RunError, WorkerError
from paceline.launch.base import Task, WorkerPool
from paceline.recipe import Recipe
from paceline.runs import list_runs
from paceline.study import scale as module
from paceline.study.entries import Entry
from paceline.study.scale import scale
from paceline.study.scale_plan import Plan, prepare
from scale_samples import one_run

BASE = {"data.train_samples": 40, "train.batch_size": 40, "train.iterations": 2, "workers": 3, "strategies": "ring,ddp"}


class NoLauncher(WorkerPool):
    """Nothing is run: `execute` is made up in these tests."""

    can_go_on = True

    def run(self, task: Task, on_event: Callable[[dict[str, Any]], None]) -> list[Any]:
        raise AssertionError(task, on_event)

    def close(self) -> None: ...


class Noted:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int]] = []
        self.warnings: list[str] = []

    def started(self, entry: Entry, repeat: int) -> None:
        self.runs.append((entry.label, repeat))

    def event(self, entry: Entry, event: dict[str, Any]) -> None:
        self.warnings.append(f"{entry.label}: {event['text']}")

    def done(self, entry: Entry, repeat: int, result: dict[str, Any]) -> None: ...


Troubles = dict[tuple[str, int, int], BaseException]  # by label, workers and how many runs of it went before


@pytest.fixture
def troubles(monkeypatch: pytest.MonkeyPatch) -> Troubles:
    found: Troubles = {}
    counts: dict[tuple[str, int], int] = {}

    def execute(launcher: WorkerPool, recipe: Recipe, entry: Entry, *, folder: Any, on_event: Any) -> Any:
        del launcher, recipe, on_event
        folder.discard()
        key = (entry.label, entry.num_workers)
        counts[key] = counts.get(key, 0) + 1
        trouble = found.get((*key, counts[key] - 1))
        if trouble is not None:
            raise trouble
        return one_run(entry.label, entry.num_workers, 0.04 / entry.num_workers * (1 + counts[key] / 1000), 0.001)

    monkeypatch.setattr(module, "execute", execute)
    cost = {"cost_percent": 1.0, "interval95_percent": None, "repeats": 3}
    monkeypatch.setattr(module, "cost_of_measuring", lambda launcher, recipe, entries, **_: (entries[0].label, cost))  # noqa: ARG005
    return found


@pytest.fixture
def plan() -> Plan:
    return prepare(Recipe().replace(BASE), (1, 2, 3), ("strong",))


def stored(out: Path) -> dict[str, Any]:
    (item,) = list_runs(out)
    return item


@pytest.mark.usefixtures("troubles")
def test_points_take_turns(plan: Plan, tmp_path: Path) -> None:
    heard = Noted()
    outcome = scale(plan, NoLauncher(), repeats=2, out=tmp_path, listener=heard)
    assert outcome is not None
    order = [label for label, repeat in heard.runs if repeat == 0]
    assert order == ["one-worker, strong"] + [f"{label} on {n}, strong" for n in (2, 3) for label in ("ring", "ddp")]
    assert [label for label, repeat in heard.runs if repeat == 1] == order[::-1]
    study, folder = outcome
    assert study == json.loads((folder / "study.json").read_text())
    assert [(row["label"], row["point"]["workers"]) for row in study["results"]] == [
        ("one-worker", 1), ("ring", 2), ("ring", 3), ("ddp", 2), ("ddp", 3),
    ]  # fmt: skip
    assert all(row["repeats"] == 2 for row in study["results"])
    assert [row["label"] for row in study["results"] if row["measuring"]] == ["ring"]
    assert (study["status"], study["failed"], study["num_points"]) == ("done", [], 5)
    assert (folder / "recipe.toml").is_file()


def test_a_point_that_fails_loses_no_other(plan: Plan, tmp_path: Path, troubles: Troubles) -> None:
    troubles["ring", 3, 1] = WorkerError(1, "died")
    heard = Noted()
    outcome = scale(plan, NoLauncher(), repeats=3, out=tmp_path, listener=heard)
    assert outcome is not None
    study = outcome[0]
    point = {"workers": 3, "mode": "strong"}
    assert study["failed"] == [{"label": "ring", "point": point, "repeat": 2, "error": "worker 1 died"}]
    assert {(row["label"], row["workers"]): row["repeats"] for row in study["results"]} == {
        ("one-worker", 1): 3, ("ring", 2): 3, ("ring", 3): 1, ("ddp", 2): 3, ("ddp", 3): 3,
    }  # fmt: skip
    assert heard.runs.count(("ring on 3, strong", 2)) == 0  # it is not tried again
    assert heard.warnings == ["ring on 3, strong: failed: worker 1 died; the other points go on"]
    assert study["status"] == "done"


def test_the_one_worker_may_fail_too(plan: Plan, tmp_path: Path, troubles: Troubles) -> None:
    troubles["one-worker", 1, 0] = WorkerError(0, "died")
    outcome = scale(plan, NoLauncher(), repeats=1, out=tmp_path, listener=Noted())
    assert outcome is not None
    assert len(outcome[0]["results"]) == 4
    assert all(row["scaling"]["speedup"] is None for row in outcome[0]["results"])


def test_a_study_whose_points_all_fail_says_so(plan: Plan, tmp_path: Path, troubles: Troubles) -> None:
    for job in plan.jobs:
        troubles[job.entry.label, job.entry.num_workers, 0] = WorkerError(0, "died")
    outcome = scale(plan, NoLauncher(), repeats=1, out=tmp_path, listener=Noted())
    assert outcome is not None
    assert outcome[0]["status"] == "failed"
    assert outcome[0]["results"] == []
    assert len(outcome[0]["failed"]) == 5


def test_workers_that_somebody_else_started_cannot_go_on(plan: Plan, tmp_path: Path, troubles: Troubles) -> None:
    troubles["ring", 2, 0] = WorkerError(1, "died")
    launcher = NoLauncher()
    launcher.can_go_on = False
    with pytest.raises(WorkerError):
        scale(plan, launcher, repeats=1, out=tmp_path, listener=Noted())
    assert [row["label"] for row in stored(tmp_path)["results"]] == ["one-worker"]


@pytest.mark.parametrize(
    ("trouble", "status"), [(KeyboardInterrupt(), "interrupted"), (RunError("the disk is full"), "failed")]
)
def test_what_was_measured_until_then_is_kept(
    plan: Plan, tmp_path: Path, troubles: Troubles, trouble: BaseException, status: str
) -> None:
    troubles["ddp", 2, 1] = trouble
    with pytest.raises(type(trouble)) as caught:
        scale(plan, NoLauncher(), repeats=2, out=tmp_path, listener=Noted())
    study = stored(tmp_path)
    assert any("is kept" in note and study["folder"] in note for note in caught.value.__notes__)
    assert study["status"] == status
    assert {(row["label"], row["workers"]): row["repeats"] for row in study["results"]} == {
        ("one-worker", 1): 1, ("ring", 2): 1, ("ring", 3): 2, ("ddp", 2): 1, ("ddp", 3): 2,
    }  # fmt: skip
