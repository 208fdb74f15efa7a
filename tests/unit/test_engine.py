"""The study engine on made-up workers: order, failures, the lock, and going on after an interruption."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Task
from paceline.recipe import Recipe, load_recipe
from paceline.results import StudyResult, changed, to_json
from paceline.runs import list_runs
from paceline.runs.store import locked
from paceline.study import engine
from paceline.study.base import Study
from paceline.study.candidates import Space
from paceline.study.compare import Compare
from paceline.study.engine import StudyOutcome, find_unfinished, interleave, run_study
from paceline.study.halving import Margins
from paceline.study.registry import studies
from paceline.study.reproduce import Reproduce
from paceline.study.scale import Scale
from paceline.study.study_folder import read_study
from paceline.study.sweep import Sweep
from paceline.study.sweep_axes import parse_vary
from paceline.study.tune import Tune

TINY = {"data.train_samples": 40, "train.batch_size": 20, "train.iterations": 2, "workers": 2, "strategies": "ring,ddp"}
RECIPE = Recipe().replace(TINY)


def compare() -> Compare:
    return Compare.prepare(RECIPE, repeats=2)


def scale() -> Scale:
    return Scale.prepare(RECIPE, (1, 2), ("strong", "weak"), repeats=2)


def sweep() -> Sweep:
    return Sweep.prepare(RECIPE, parse_vary(["batch-size=10,20"]), repeats=2)


def tune() -> Tune:
    recipe = load_recipe("lenet5-mnist").replace({"strategy": "all-reduce", "train.iterations": 50, "workers": 2})
    space = Space(strategies=("ring", "overlap"), buckets_mb=(0.1, 1.0), codecs=("fp32", "bf16"), periods=(4,))
    return Tune.prepare(recipe, space, margins=Margins(), eta=3, repeats=2)


def reproduce(data_dir: str = "nowhere") -> Reproduce:
    return Reproduce.prepare("lenet5-two-reduces", data_dir=data_dir, on_cluster=False, repeats=2)


STUDIES: list[Callable[[], Study]] = [compare, scale, sweep, tune, reproduce]


@pytest.fixture(autouse=True)
def nothing_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process predicts memory, and no oracle is trained."""
    monkeypatch.setattr("paceline.study.sweep.measure_footprints", lambda recipes: ({}, []))  # noqa: ARG005
    monkeypatch.setattr("paceline.study.reproduce.reproduce._write_oracle", lambda *_: None)


def answer(task: Task, number: int) -> list[dict[str, Any]]:
    """Workers whose times tell strategies and steps apart; for a proof, equal replicas that move."""
    del number
    if "oracle" in task.arguments:
        steps = [{"step": step, "digest": str(step)} for step in range(2)]
        report = {"steps": steps, "start_digest": "", "final_digest": "1", "metrics": {}, "final_relative_error": 0.0}
        return [{"rank": rank, **report} for rank in range(task.num_workers)]
    time_s = 0.1 + len(task.arguments["strategy"]) / 1000
    steps = task.arguments["recipe"].train.iterations or 4
    return [made_up_worker(rank, [time_s] * steps, test_accuracy=0.8) for rank in range(task.num_workers)]


class Troubled(MadeUpLauncher):
    """Raises at one of its tasks."""

    def __init__(self, at: int | None = None, trouble: BaseException | None = None) -> None:
        super().__init__(self._reply)
        self._at, self._trouble = at, trouble or KeyboardInterrupt()

    def _reply(self, task: Task, number: int) -> list[dict[str, Any]]:
        if number == self._at:
            raise self._trouble
        return answer(task, number)


def ran(study: Study, out: Path, launcher: MadeUpLauncher | None = None, **options: Any) -> StudyOutcome:
    outcome = run_study(study, launching(launcher or Troubled()), Silent(), out, **options)
    assert outcome is not None
    return outcome


def test_every_other_round_runs_backwards() -> None:
    labels = [(cell.key, cell.repeat) for cell in interleave(Compare.prepare(RECIPE, repeats=3).cells())]
    assert labels == [("ring", 0), ("ddp", 0), ("ddp", 1), ("ring", 1), ("ring", 2), ("ddp", 2)]


@pytest.mark.parametrize(("make", "seeds"), [(compare, {0}), (scale, {0}), (sweep, {0}), (tune, {0, 1})])
def test_repeats_have_seeds_of_their_own_where_accuracy_is_judged(make: Callable[[], Study], seeds: set[int]) -> None:
    study = make()
    assert {cell.seed for cell in study.cells()} == seeds
    assert study.varies_seed == (len(seeds) > 1)


def test_the_registry_finds_every_study_with_its_result() -> None:
    found = studies.classes
    assert set(found) == {"compare", "scale", "sweep", "tune", "reproduce"}
    assert {name: kind.result_type.study_name for name, kind in found.items()} == {name: name for name in found}


def same(result: StudyResult) -> Any:
    """All of a result but when and how long it ran."""
    plain = to_json(changed(result, started="", wall_s=None, environment=result.environment))
    del plain["environment"]
    for row in plain["results"]:
        row["total_s"] = None
    return plain


@pytest.mark.parametrize("make", STUDIES, ids=lambda make: make.__name__)
def test_a_study_goes_on_wherever_it_was_interrupted(make: Callable[[], Study], tmp_path: Path) -> None:
    whole = Troubled()
    expected = same(ran(make(), tmp_path / "whole", whole).result)
    num_tasks = len(whole.tasks)
    for at in range(num_tasks):
        out = tmp_path / str(at)
        first, second = Troubled(at), Troubled()
        with pytest.raises(KeyboardInterrupt) as caught:
            ran(make(), out, first)
        [stored] = list_runs(out)
        assert stored.status == "interrupted"
        assert caught.value.__notes__ == [f"completed runs are kept; continue with --resume {stored.folder}"]
        study = make()
        folder = find_unfinished(study, out)
        assert folder == stored.folder
        # Restored from the folder alone, as --resume does.
        again = type(study).from_stored(read_study(folder))
        outcome = ran(again, out, second, resume=folder)
        assert len(first.tasks) - 1 + len(second.tasks) == num_tasks, "nothing runs twice, and nothing is left out"
        assert same(outcome.result) == expected
        assert outcome.folder == folder
        assert outcome.result.started == stored.started
        assert find_unfinished(study, out) is None


@pytest.mark.parametrize("make", STUDIES, ids=lambda make: make.__name__)
def test_a_study_is_visible_and_marked_from_its_start(make: Callable[[], Study], tmp_path: Path) -> None:
    seen: list[str] = []

    def look(task: Task, number: int) -> list[dict[str, Any]]:
        seen.extend(str(item.status) for item in list_runs(tmp_path))
        return answer(task, number)

    outcome = ran(make(), tmp_path, MadeUpLauncher(look))
    assert set(seen) == {"running"}
    assert outcome.result.status == "done"


def test_a_failure_ends_a_comparison_and_keeps_the_rest(tmp_path: Path) -> None:
    with pytest.raises(WorkerError):
        ran(compare(), tmp_path, Troubled(3, WorkerError(1, "died")))
    [stored] = list_runs(tmp_path)
    assert (stored.status, stored.error) == ("failed", "worker 1 died")
    assert [(row.label, row.repeats) for row in stored.results] == [("ring", 1), ("ddp", 1)]  # type: ignore[union-attr]


@pytest.mark.parametrize("make", [scale, sweep, tune])
def test_other_cells_go_on_after_a_failure(make: Callable[[], Study], tmp_path: Path) -> None:
    launcher, listener = Troubled(1, WorkerError(1, "died")), Silent()
    outcome = run_study(make(), launching(launcher), listener, tmp_path)
    assert outcome is not None
    assert outcome.result.results
    [warning] = listener.warnings
    assert warning.endswith("failed: worker 1 died; continuing with the others")
    failed = listener.started_rows[1]
    assert [row for row in listener.started_rows if row[0] == failed[0] and row != failed] == [] or make is tune


def test_shared_processes_that_cannot_go_on_end_the_study(tmp_path: Path) -> None:
    launcher = Troubled(1, WorkerError(1, "died"))
    launcher.can_go_on = False
    with pytest.raises(WorkerError):
        ran(scale(), tmp_path, launcher)
    assert list_runs(tmp_path)[0].status == "failed"


def test_only_workers_of_shared_processes_may_fail(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="disk"):
        ran(scale(), tmp_path, Troubled(1, RunError("the disk is full")))


@pytest.mark.parametrize("make", [compare, scale])
def test_a_failing_overhead_probe_is_a_caution(make: Callable[[], Study], tmp_path: Path) -> None:
    def reply(task: Task, number: int) -> list[dict[str, Any]]:
        if task.arguments.get("steps_per_block"):
            raise WorkerError(0, "died")
        return answer(task, number)

    outcome = ran(make(), tmp_path, MadeUpLauncher(reply))
    assert outcome.result.status == "done"
    assert outcome.result.cautions == ["profiling overhead could not be measured: worker 0 died"]
    assert all(row.measuring is None for row in outcome.result.results)
    assert read_study(outcome.folder).cautions == outcome.result.cautions


def test_a_second_process_never_joins(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(compare(), tmp_path, Troubled(2))
    folder = find_unfinished(compare(), tmp_path)
    assert folder is not None
    with locked(folder):
        for attempt in (
            lambda: find_unfinished(compare(), tmp_path),
            lambda: ran(compare(), tmp_path, resume=folder),
        ):
            with pytest.raises(UsageError, match="is being run by another process; wait until it ends"):
                attempt()
        ran(compare(), tmp_path)  # a new study is not kept from running
    assert len(list_runs(tmp_path)) == 2
    assert find_unfinished(compare(), tmp_path) == folder


def test_the_lock_is_held_while_a_study_runs_and_only_then(tmp_path: Path) -> None:
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def is_free(folder: Path) -> bool:
        command = [sys.executable, "-c", code, str(folder / "recipe.toml")]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0

    seen: list[bool] = []

    def look(task: Task, number: int) -> list[dict[str, Any]]:
        if number == 0:
            seen.append(is_free(list_runs(tmp_path)[0].folder))
        return answer(task, number)

    outcome = ran(compare(), tmp_path, MadeUpLauncher(look))
    assert seen == [False]
    assert is_free(outcome.folder)


def test_another_request_is_another_study(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(compare(), tmp_path, Troubled(0))
    assert find_unfinished(compare(), tmp_path) is not None
    assert find_unfinished(Compare.prepare(RECIPE, repeats=3), tmp_path) is None
    assert find_unfinished(Compare.prepare(RECIPE.replace({"seed": 1}), repeats=2), tmp_path) is None
    assert find_unfinished(scale(), tmp_path) is None
    [stored] = list_runs(tmp_path)
    with pytest.raises(UsageError, match="cannot be resumed: its repeats differs"):
        ran(Compare.prepare(RECIPE, repeats=3), tmp_path, resume=stored.folder)


def test_an_edited_file_of_the_user_is_another_study(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import nn\n\n\ndef model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))\n"
    )
    recipe = RECIPE.replace({"model.name": f"{file}:model", "data.name": "synthetic:1x4x4x2"})
    study = Compare.prepare(recipe, repeats=2)
    with pytest.raises(KeyboardInterrupt):
        ran(study, tmp_path / "runs", Troubled(1))
    assert find_unfinished(study, tmp_path / "runs") is not None
    file.write_text(file.read_text() + "# edited\n")
    assert find_unfinished(study, tmp_path / "runs") is None


def test_a_process_that_does_not_report_stores_nothing(tmp_path: Path) -> None:
    launcher = MadeUpLauncher(lambda task, number: [])  # noqa: ARG005
    launcher.is_main = False
    assert run_study(compare(), launching(launcher), Silent(), tmp_path) is None
    assert os.listdir(tmp_path) == []
    assert len(launcher.tasks) == 5, "it takes part in every cell, and in the overhead probe"


def test_damaged_studies_and_runs_are_stepped_over(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(compare(), tmp_path, Troubled(3))
    folder = find_unfinished(compare(), tmp_path)
    assert folder is not None
    for name in ("broken", "foreign"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").write_text("{" if name == "broken" else '{"study": "compare", "schema": 1}')
    assert find_unfinished(compare(), tmp_path) == folder
    (folder / "runs" / "ring-1" / "summary.json").write_text("{}")
    launcher = Troubled()
    outcome = ran(compare(), tmp_path, launcher, resume=folder)
    assert outcome.result.status == "done"
    strategies = [task.arguments["strategy"] for task in launcher.tasks]
    assert strategies[:2] == ["ring", "ring"], "the damaged run is measured again"


def test_a_full_disk_leaves_the_study_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RunError("study.json cannot be written: the disk is full")

    monkeypatch.setattr(engine.StudyFolder, "write", full)
    with pytest.raises(RunError, match="the disk is full"):
        ran(compare(), tmp_path)
    [stored] = list_runs(tmp_path)
    assert (stored.status, stored.study) == ("interrupted", "compare")
    assert [item.status for item in list_runs(stored.folder / "runs")] == ["done"]


def test_resume_and_fresh_contradict_each_other(tmp_path: Path) -> None:
    said = run_command("compare", "--resume", "some-study", "--fresh", "--out", str(tmp_path))
    assert said.code == 2
    assert "give one of the two" in " ".join(said.err.split())
