"""A sweep from its request to its folder, on made-up workers: what is run, kept, refused, and not run again."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made_up import MadeUpLauncher, made_up_worker
from paceline.cli.parts.sweeping import choose_request
from paceline.errors import RunError, UsageError
from paceline.launch.base import Task
from paceline.recipe import Recipe
from paceline.runs import list_runs, read
from paceline.study import sweep as study
from paceline.study.memory import Footprint
from paceline.study.points import Point
from paceline.study.remedies import parse_remedies
from paceline.study.sweep import Request, open_sweep, prepare, run_sweep, unfinished
from paceline.study.vary import parse_vary

RECIPE = Recipe().replace({"workers": 2, "strategy": "overlap", "data.train_samples": 64, "train.epochs": 1})
RECIPE = RECIPE.replace({"train.batch_size": 16})
Answer = Callable[[Task, int], list[dict[str, Any]]]


class Told:
    """Follows a sweep and remembers."""

    def __init__(self) -> None:
        self.started_labels: list[str] = []
        self.done_labels: list[str] = []

    def started(self, entry: Any, repeat: int) -> None:  # noqa: ARG002
        self.started_labels.append(entry.label)

    def event(self, entry: Any, event: Any) -> None: ...

    def done(self, entry: Any, repeat: int, result: Any) -> None:  # noqa: ARG002
        self.done_labels.append(entry.label)


class Starts:
    """Starts a made-up launcher for every point and keeps the tasks."""

    def __init__(self, fail_at: dict[int, BaseException] | None = None) -> None:
        self.batches: list[int] = []
        self._fail_at = fail_at or {}

    def __call__(self, point: Point) -> MadeUpLauncher:
        assert point.entry is not None

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
    monkeypatch.setattr(study, "measure_footprints", lambda recipes: ({}, []))  # noqa: ARG005


def request(*words: str, remedies: tuple[str, ...] = (), repeats: int = 1, recipe: Recipe = RECIPE) -> Request:
    return Request(recipe, parse_vary(words), parse_remedies(remedies), repeats)


def test_every_point_is_a_run_and_a_row(tmp_path: Path) -> None:
    told, starts = Told(), Starts()
    sweep = open_sweep(request("batch-size=8,16,32"), out=tmp_path)
    found = run_sweep(sweep, starts, told)
    assert starts.batches == [8, 16, 32]
    assert told.started_labels == told.done_labels == [f"batch_size {size}" for size in (8, 16, 32)]
    assert found["status"] == "done"
    assert [row["point"] for row in found["results"]] == [{"train.batch_size": size} for size in (8, 16, 32)]
    assert all("versus_fastest" not in row for row in found["results"])  # other batches are other work
    stored = read(sweep.folder)
    assert stored["results"] == json.loads(json.dumps(found["results"]))
    assert (stored["kind"], stored["study"], stored["num_points"]) == ("study", "sweep", 3)
    assert [item["kind"] for item in list_runs(tmp_path)] == ["study"]
    assert len(list_runs(sweep.folder / "runs")) == 3
    assert Recipe.from_toml((sweep.folder / "recipe.toml").read_text()) == RECIPE


def test_rows_of_the_same_work_are_compared(tmp_path: Path) -> None:
    sweep = open_sweep(request("strategy.bucket_mb=1,2", repeats=2), out=tmp_path)
    found = run_sweep(sweep, Starts(), Told())
    assert [row["repeats"] for row in found["results"]] == [2, 2]
    assert sorted(row["versus_fastest"]["verdict"] for row in found["results"]) == ["fastest", "no difference"]
    assert [row["options"]["bucket_mb"] for row in found["results"]] == [1.0, 2.0]


def test_repeats_run_in_turn_and_back(tmp_path: Path) -> None:
    starts = Starts()
    run_sweep(open_sweep(request("batch-size=8,16", repeats=3), out=tmp_path), starts, Told())
    assert starts.batches == [8, 16, 16, 8, 8, 16]


def test_a_point_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    starts = Starts({1: RunError("worker 1 fell over")})
    sweep = open_sweep(request("batch-size=8,16,32", repeats=2), out=tmp_path)
    found = run_sweep(sweep, starts, Told())
    assert starts.batches == [8, 16, 32, 32, 8]  # not tried a second time
    assert found["status"] == "failed"
    assert found["error"] == "batch_size 16: worker 1 fell over"
    assert [row["batch_size"] for row in found["results"]] == [8, 32]
    [failure] = found["failures"]
    assert (failure["status"], failure["point"], failure["reason"]) == (
        "failed",
        {"train.batch_size": 16},
        "worker 1 fell over",
    )


def test_a_point_that_data_cannot_feed_is_refused(tmp_path: Path) -> None:
    starts = Starts()
    found = run_sweep(open_sweep(request("batch-size=8,100"), out=tmp_path), starts, Told())
    assert starts.batches == [8]
    assert found["status"] == "done"
    assert found["failures"][0]["status"] == "refused"
    assert "larger than the 64 training samples" in found["failures"][0]["reason"]
    with pytest.raises(UsageError, match="no point of the sweep can be run; the first, batch_size 100: batch size"):
        prepare(request("batch-size=100,200"))


def test_what_cannot_fit_is_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terabyte = [(0, (0.0, 1e12))]  # per sample
    small: dict[str, Any] = {"process_bytes": 1, "data_bytes": 1, "parameter_bytes": 1, "tensors": [(1, 4)]}
    lines: dict[str, Any] = {"batch_line": (0.0, 1.0), "load_changes": terabyte, "judge_changes": []}
    footprint = Footprint(**small, **lines, step_changes=terabyte, state_bytes={RECIPE.optimizer: 0})
    monkeypatch.setattr(
        study,
        "measure_footprints",
        lambda recipes: ({study.footprint_key(recipe): footprint for recipe in recipes}, []),
    )
    starts = Starts()
    found = run_sweep(open_sweep(request("batch-size=8,16"), out=tmp_path), starts, Told())
    assert starts.batches == []
    assert found["results"] == []
    reasons = [failure["reason"] for failure in found["failures"]]
    assert all("even one sample at a time would need" in reason for reason in reasons)
    assert "needs 8000.02 GB (2 workers of 4000.01 GB)" in reasons[0]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = request("batch-size=8,16,32", remedies=("linear",), repeats=2)
    first = Starts({7: KeyboardInterrupt()})
    sweep = open_sweep(asked, out=tmp_path)
    with pytest.raises(KeyboardInterrupt) as caught:
        run_sweep(sweep, first, Told())
    assert caught.value.__notes__ == [f"what was measured until then is kept; go on with --resume {sweep.folder}"]
    stored = read(sweep.folder)
    assert stored["status"] == "interrupted"
    assert [row["repeats"] for row in stored["results"]] == [1] * 6
    found = unfinished(asked, tmp_path)
    assert found is not None
    assert Request.of(found).facts == asked.facts
    second = Starts()
    again = open_sweep(Request.of(found), out=tmp_path, resume=found)
    assert again.num_finished == 1
    done = run_sweep(again, second, Told())
    assert second.batches == [32, 16, 16, 8, 8]
    assert done["status"] == "done"
    assert [row["repeats"] for row in done["results"]] == [2] * 6
    assert unfinished(asked, tmp_path) is None
    assert done["started"] == stored["started"]


def test_a_sweep_that_was_killed_keeps_what_it_has(tmp_path: Path) -> None:
    asked = request("batch-size=8,16")
    sweep = open_sweep(asked, out=tmp_path)
    assert read(sweep.folder)["status"] == "interrupted"  # from its first moment, whatever ends it
    with suppress(SystemError):
        run_sweep(sweep, Starts({1: SystemError()}), Told())
    stored = read(sweep.folder)
    assert (stored["status"], len(stored["results"])) == ("failed", 1)
    starts = Starts()
    run_sweep(open_sweep(asked, out=tmp_path, resume=stored), starts, Told())
    assert starts.batches == [16]


def test_a_failed_point_is_tried_again_by_the_next_one(tmp_path: Path) -> None:
    asked = request("batch-size=8,16")
    sweep = open_sweep(asked, out=tmp_path)
    assert run_sweep(sweep, Starts({0: RunError("once")}), Told())["status"] == "failed"
    found = unfinished(asked, tmp_path)
    assert found is not None
    starts = Starts()
    done = run_sweep(open_sweep(asked, out=tmp_path, resume=found), starts, Told())
    assert starts.batches == [8]
    assert (done["status"], done["failures"], len(done["results"])) == ("done", [], 2)
    assert "error" not in read(sweep.folder)


@pytest.mark.parametrize(
    "other",
    [
        request("batch-size=8,16", repeats=2),
        request("batch-size=8"),
        request("batch-size=8,16", remedies=("lars",)),
        request("batch-size=8,16", recipe=RECIPE.replace({"seed": 1})),
    ],
)
def test_another_request_is_another_sweep(tmp_path: Path, other: Request) -> None:
    open_sweep(request("batch-size=8,16"), out=tmp_path)
    assert unfinished(other, tmp_path) is None
    assert unfinished(request("batch-size=8,16"), tmp_path) is not None


@pytest.mark.parametrize(
    ("answer", "is_fresh", "goes_on"),
    [("y\n", False, True), ("n\n", False, False), (None, False, True), (None, True, False)],
)
def test_the_same_command_again_offers_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, is_fresh: bool, goes_on: bool
) -> None:
    open_sweep(request("batch-size=8,16"), out=tmp_path)
    stdin = io.StringIO(answer or "")
    stdin.isatty = lambda: answer is not None  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)
    said = io.StringIO()
    _, stored = choose_request(
        RECIPE, ["batch-size=8,16"], [], 1, 1, out=tmp_path, resume="", is_fresh=is_fresh, console=Console(file=said)
    )
    assert (stored is not None) == goes_on
    assert ("was begun before and is not finished" in " ".join(said.getvalue().split())) == (not is_fresh)
