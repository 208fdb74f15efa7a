"""A sweep from its request to its folder, on made-up workers: what is run, kept, refused, and not run again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_up import MadeUpLauncher, Silent, made_up_worker
from paceline.cli.study_session import StudySession
from paceline.errors import RunError, UsageError
from paceline.launch.base import LaunchRequest, Task
from paceline.recipe import ClusterConfig, Recipe
from paceline.results.study import SweepResult
from paceline.runs import list_runs
from paceline.study import sweep as module
from paceline.study.engine import find_unfinished, run_study
from paceline.study.study_folder import read_study
from paceline.study.sweep import Sweep
from paceline.study.sweep_axes import parse_remedies, parse_vary
from paceline.train.footprint import Footprint

RECIPE = Recipe().replace({"workers": 2, "strategy": "overlap", "data.train_samples": 64, "train.epochs": 1})
RECIPE = RECIPE.replace({"train.batch_size": 16})


class Starts:
    """Starts a made-up launcher for every point and keeps the batch sizes."""

    def __init__(self, fail_at: dict[int, BaseException] | None = None) -> None:
        self.batches: list[int] = []
        self.num_launchers = 0
        self._fail_at = fail_at or {}

    def __call__(self, num_processes: int, cluster: ClusterConfig) -> MadeUpLauncher:
        del num_processes, cluster
        self.num_launchers += 1

        def answer(task: Task, number: int) -> list[dict[str, Any]]:
            del number
            self.batches.append(task.arguments["recipe"].batch_size)
            if len(self.batches) - 1 in self._fail_at:
                raise self._fail_at[len(self.batches) - 1]
            return [made_up_worker(rank, [1.0, 1.0, 1.0]) for rank in range(task.num_workers)]

        return MadeUpLauncher(answer)


@pytest.fixture(autouse=True)
def no_footprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started to predict memory, unless a test gives footprints."""
    monkeypatch.setattr(module, "measure_footprints", lambda recipes: ({}, []))  # noqa: ARG005


def sweep(*words: str, remedies: tuple[str, ...] = (), repeats: int = 1) -> Sweep:
    return Sweep.prepare(RECIPE, parse_vary(words), parse_remedies(remedies), repeats=repeats)


def ran(study: Sweep, starts: Starts, out: Path, told: Silent | None = None, **options: Any) -> SweepResult:
    outcome = run_study(study, starts, told or Silent(), out, **options)
    assert outcome is not None
    assert isinstance(outcome.result, SweepResult)
    return outcome.result


def test_every_point_is_a_run_and_a_row(tmp_path: Path) -> None:
    told, starts = Silent(), Starts()
    found = ran(sweep("batch-size=8,16,32"), starts, tmp_path, told)
    assert starts.batches == [8, 16, 32]
    assert starts.num_launchers == 3, "every point has processes of its own"
    assert told.started_rows == told.done_rows == [(f"batch_size {size}", 0) for size in (8, 16, 32)]
    assert found.status == "done"
    assert [row.point for row in found.results] == [{"train.batch_size": size} for size in (8, 16, 32)]
    assert all(row.versus_fastest is None for row in found.results)  # other batches are other work
    [stored] = list_runs(tmp_path)
    assert stored.content == found
    assert (found.kind, found.study, found.num_points) == ("study", "sweep", 3)
    assert len(list_runs(stored.folder / "runs")) == 3
    assert Recipe.from_toml((stored.folder / "recipe.toml").read_text()) == RECIPE


def test_rows_of_the_same_work_are_compared(tmp_path: Path) -> None:
    found = ran(sweep("strategy.bucket_mb=1,2", repeats=2), Starts(), tmp_path)
    assert [row.repeats for row in found.results] == [2, 2]
    verdicts = [row.versus_fastest.verdict for row in found.results if row.versus_fastest]
    assert sorted(map(str, verdicts)) == ["fastest", "no difference"]
    assert [row.options["bucket_mb"] for row in found.results] == [1.0, 2.0]


def test_a_point_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    starts = Starts({1: RunError("worker 1 fell over")})
    found = ran(sweep("batch-size=8,16,32", repeats=2), starts, tmp_path)
    assert starts.batches == [8, 16, 32, 32, 8]  # not tried a second time
    assert found.status == "failed"
    assert found.error == "batch_size 16: worker 1 fell over"
    assert [row.batch_size for row in found.results] == [8, 32]
    [failure] = found.failures
    assert (failure.status, failure.point, failure.reason) == (
        "failed",
        {"train.batch_size": 16},
        "worker 1 fell over",
    )


def test_a_point_that_data_cannot_feed_is_refused(tmp_path: Path) -> None:
    starts = Starts()
    found = ran(sweep("batch-size=8,100"), starts, tmp_path)
    assert starts.batches == [8]
    assert found.status == "done"
    assert found.failures[0].status == "refused"
    assert "larger than the 64 training samples" in str(found.failures[0].reason)
    with pytest.raises(
        UsageError, match="no point of the sweep can run; the reason for the first, batch_size 100: batch size"
    ):
        sweep("batch-size=100,200")


def test_what_cannot_fit_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terabyte = [(0, (0.0, 1e12))]  # per sample
    small: dict[str, Any] = {"process_bytes": 1, "data_bytes": 1, "parameter_bytes": 1, "tensors": [(1, 4)]}
    lines: dict[str, Any] = {"batch_line": (0.0, 1.0), "load_changes": terabyte, "evaluation_changes": []}
    footprint = Footprint(**small, **lines, step_changes=terabyte, state_bytes={RECIPE.optimizer: 0})
    monkeypatch.setattr(
        module,
        "measure_footprints",
        lambda recipes: ({module.footprint_key(recipe): footprint for recipe in recipes}, []),
    )
    starts = Starts()
    found = ran(sweep("batch-size=8,16"), starts, tmp_path)
    assert starts.batches == []
    assert found.results == []
    reasons = [str(failure.reason) for failure in found.failures]
    assert all("even one sample at a time would need" in reason for reason in reasons)
    assert "needs 8000.02 GB (2 workers of 4000.01 GB)" in reasons[0]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = sweep("batch-size=8,16,32", remedies=("linear",), repeats=2)
    with pytest.raises(KeyboardInterrupt):
        ran(asked, Starts({7: KeyboardInterrupt()}), tmp_path)
    folder = find_unfinished(asked, tmp_path)
    assert folder is not None
    stored = read_study(folder)
    assert stored.status == "interrupted"
    assert [row.repeats for row in stored.results] == [1] * 6
    second = Starts()
    done = ran(Sweep.from_stored(stored), second, tmp_path, resume=folder)
    assert second.batches == [32, 16, 16, 8, 8]
    assert [row.repeats for row in done.results] == [2] * 6


def test_a_failed_point_is_tried_again_by_the_next_one(tmp_path: Path) -> None:
    asked = sweep("batch-size=8,16")
    assert ran(asked, Starts({0: RunError("once")}), tmp_path).status == "failed"
    folder = find_unfinished(asked, tmp_path)
    assert folder is not None
    starts = Starts()
    done = ran(asked, starts, tmp_path, resume=folder)
    assert starts.batches == [8]
    assert (done.status, done.failures, len(done.results)) == ("done", [], 2)
    assert read_study(folder).error is None


@pytest.mark.parametrize(
    "other",
    [
        {"repeats": 2},
        {"remedies": ("lars",)},
        {"words": ("batch-size=8",)},
    ],
)
def test_another_request_is_another_sweep(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        ran(sweep("batch-size=8,16"), Starts({0: KeyboardInterrupt()}), tmp_path)
    words = other.pop("words", ("batch-size=8,16",))
    assert find_unfinished(sweep(*words, **other), tmp_path) is None
    assert find_unfinished(sweep("batch-size=8,16"), tmp_path) is not None


@pytest.mark.parametrize(
    ("answer", "is_fresh", "goes_on"),
    [("y\n", False, True), ("n\n", False, False), (None, False, True), (None, True, False)],
)
def test_the_same_command_again_offers_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, is_fresh: bool, goes_on: bool
) -> None:
    study = sweep("batch-size=8,16")
    with pytest.raises(KeyboardInterrupt):
        ran(study, Starts({0: KeyboardInterrupt()}), tmp_path)
    stdin = io.StringIO(answer or "")
    stdin.isatty = lambda: answer is not None  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    said = io.StringIO()
    session = StudySession(LaunchRequest(), fresh=is_fresh, out=tmp_path)
    session.__dict__["console"] = Console(file=said)
    _, folder = session.choose(Sweep, lambda: study)
    assert (folder is not None) == goes_on
    assert ("This study was started before" in " ".join(said.getvalue().split())) == (not is_fresh)
