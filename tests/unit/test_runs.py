"""The store: written whole or not at all, refused when newer or damaged."""

from __future__ import annotations

import errno
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Task
from paceline.recipe import Recipe
from paceline.results import SCHEMA, CompareResult, Environment, RunRecord, convert
from paceline.results.worker_report import WorkerReport
from paceline.runs import Folder, list_runs, nonfinite_to_none, read, timestamped, write_run
from paceline.study.compare import Compare
from paceline.study.engine import StudyOutcome, run_study
from paceline.study.entries import make_entry
from paceline.study.run import execute
from paceline.study.run_results import run_result

RECIPE = Recipe().replace({"workers": 2, "name": "toy"})


def ignore(event: Any) -> None: ...


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_once(out: Path, launcher: MadeUpLauncher | None = None) -> None:
    execute(
        launcher or MadeUpLauncher(), RECIPE, make_entry("ring", RECIPE), folder=Folder(out, "toy"), on_event=ignore
    )


def disk_full_at(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Writing that file leaves half of it and then finds the disk full."""
    whole = Path.write_text

    def write_text(self: Path, text: str, **options: Any) -> int:
        if self.name != file:
            return whole(self, text, **options)
        whole(self, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)


def test_a_run_has_its_files(tmp_path: Path) -> None:
    run_once(tmp_path)
    assert names(tmp_path) == ["toy"]
    folder = tmp_path / "toy"
    assert names(folder) == ["checkpoints", "environment.json", "recipe.toml", "summary.json", "workers"]
    assert names(folder / "workers") == ["0.jsonl", "1.jsonl"]
    lines = [json.loads(line) for line in (folder / "workers" / "1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[0]["iteration_s"] == 1.0
    assert Recipe.from_toml((folder / "recipe.toml").read_text()) == RECIPE.replace({"strategy": "ring"})
    summary = read(folder)
    assert (summary.content["schema"], summary.kind, summary.status, summary.folder) == (SCHEMA, "run", "done", folder)
    assert read(folder / "summary.json") == summary


@pytest.mark.parametrize("file", ["recipe.toml", "environment.json", "0.jsonl", "1.jsonl", "summary.json"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    disk_full_at(monkeypatch, file)
    with pytest.raises(RunError, match=f"{file} cannot be written: the disk is full"):
        run_once(tmp_path)
    assert names(tmp_path) == []


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def mkdir(self: Path, *args: Any, **options: Any) -> None:
        if self.name == "checkpoints":
            raise OSError(errno.ENOSPC, "No space left on device")
        make(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(RunError, match="checkpoints cannot be written: the disk is full"):
        run_once(tmp_path)
    assert names(tmp_path) == []


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(self: Path, target: Path) -> None:  # noqa: ARG001
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(RunError, match="toy cannot be written: Input/output error"):
        run_once(tmp_path)
    assert names(tmp_path) == []


def test_taken_names_get_a_number(tmp_path: Path) -> None:
    for _ in range(3):
        run_once(tmp_path)
    assert names(tmp_path) == ["toy", "toy-2", "toy-3"]
    (tmp_path / "toy-4").write_text("a file in the way")
    run_once(tmp_path)
    assert names(tmp_path)[-1] == "toy-5"
    assert (tmp_path / "toy-4").read_text() == "a file in the way"


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"results cannot be written to .*; choose another --out"):
        Folder(tmp_path / "file" / "runs", "toy")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is damaged"),
        ("", "is damaged"),
        ("[1, 2]", "is damaged"),
        ('{"kind": "run"}', "is damaged: it has no schema number"),
        ("\udcff", "is damaged"),
        (f'{{"schema": {SCHEMA + 1}}}', f"has schema {SCHEMA + 1}, this version of paceline reads up to {SCHEMA}"),
        ('{"schema": "two"}', "is damaged: it has no schema number"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "summary.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=sentence):
        read(tmp_path / "bad")
    run_once(tmp_path)
    unreadable, run = list_runs(tmp_path)
    assert (unreadable.kind, unreadable.folder) == ("unreadable", tmp_path / "bad")
    assert sentence in unreadable.reason
    assert run.kind == "run"


def test_folders_that_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / ".toy.part").mkdir()
    (tmp_path / ".toy.part" / "summary.json").write_text("{}")
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "missing") == []
    for path in (tmp_path / "empty", tmp_path / "missing", tmp_path / "empty" / "other.json"):
        with pytest.raises(UsageError, match="is neither a run nor a study"):
            read(path)


def test_numbers_that_json_does_not_have() -> None:
    value = {"a": [1.0, math.nan, (math.inf, -math.inf)], 3: {"b": True, "c": None, "d": "x", "e": 2}}
    assert nonfinite_to_none(value) == {"a": [1.0, None, [None, None]], "3": {"b": True, "c": None, "d": "x", "e": 2}}


def test_nan_is_written_as_null(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "toy")
    worker = convert(made_up_worker(0, [1.0], loss=[math.inf]), WorkerReport)
    result = run_result(RECIPE, make_entry("ring", RECIPE), [worker], total_s=1.0)
    record = RunRecord(schema=SCHEMA, kind="run", name="toy", started="", status="done", result=result)
    write_run(folder, RECIPE, Environment(), record, [worker])
    final = folder.commit()
    assert json.loads((final / "summary.json").read_text(), parse_constant=pytest.fail)["result"]["curve"]["loss"] == [
        None
    ]
    assert json.loads((final / "workers" / "0.jsonl").read_text(), parse_constant=pytest.fail)["loss"] is None


def test_names_sort_by_time_and_are_safe() -> None:
    name = timestamped("a/b c:ü")
    assert name[8] == name[15] == "-"
    assert name[16:] == "a-b-c-ü"
    assert len(timestamped("x" * 300)) == 100


def failing(error: BaseException, at: int) -> MadeUpLauncher:
    def answer(task: Task, index: int) -> list[dict[str, Any]]:
        if index == at:
            raise error
        return [made_up_worker(rank, [1.0, 2.0 + index]) for rank in range(task.num_workers)]

    return MadeUpLauncher(answer)


@pytest.mark.parametrize(
    ("error", "status"), [(WorkerError(1, "died"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_unfinished_run_is_kept_and_marked(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        run_once(tmp_path, failing(error, 0))
    assert read(tmp_path / "toy").status == status
    assert list(read(tmp_path / "toy").results) == []


def test_a_mistake_in_the_request_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        run_once(tmp_path, failing(UsageError("no"), 0))
    assert names(tmp_path) == []


def study(out: Path, launcher: MadeUpLauncher, listener: Silent, repeats: int = 2) -> StudyOutcome:
    recipe = RECIPE.replace({"strategies": ["one-worker", "ring", "all-reduce"]})
    outcome = run_study(Compare.prepare(recipe, repeats=repeats), launching(launcher), listener, out)
    assert outcome is not None
    return outcome


def test_a_study_runs_every_other_round_backwards(tmp_path: Path) -> None:
    listener = Silent()
    outcome = study(tmp_path, MadeUpLauncher(), listener)
    rows = [label for label, _ in listener.started_rows]
    assert rows == ["one-worker", "ring", "all-reduce", "all-reduce", "ring", "one-worker"]
    assert listener.done_rows == listener.started_rows
    assert [row.label for row in outcome.result.results] == ["one-worker", "ring", "all-reduce"]
    assert [row.repeats for row in outcome.result.results] == [2, 2, 2]
    assert read(outcome.folder).status == "done"
    assert names(outcome.folder) == ["recipe.toml", "runs", "study.json"]
    assert names(outcome.folder / "runs") == sorted(
        f"{row}-{n}" for row in ("one-worker", "ring", "all-reduce") for n in (1, 2)
    )


@pytest.mark.parametrize(
    ("error", "status"), [(WorkerError(1, "died"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_unfinished_study_keeps_what_was_measured(tmp_path: Path, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)):
        study(tmp_path, failing(error, 4), Silent())
    [stored] = list_runs(tmp_path)
    assert (stored.kind, stored.status) == ("study", status)
    # One round was completed: every row has one repeat, and a fair comparison uses no more.
    assert isinstance(stored.content, CompareResult)
    assert [(row.label, row.repeats) for row in stored.content.results] == [
        ("one-worker", 1),
        ("ring", 1),
        ("all-reduce", 1),
    ]
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_what_a_killed_writer_left_is_swept_and_a_living_ones_is_not(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    living = Folder(tmp_path, "living")
    left = tmp_path / f".left.abc.{socket.gethostname()}-{ended.pid}.part"
    elsewhere = tmp_path / f".left.abc.another-host-{ended.pid}.part"
    left.mkdir()
    elsewhere.mkdir()
    new = Folder(tmp_path, "new")
    assert not left.exists()
    assert living.path.is_dir()
    assert elsewhere.is_dir()
    living.discard()
    new.discard()
