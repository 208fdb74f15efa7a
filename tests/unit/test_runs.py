"""The store: written whole or not at all, refused when newer or damaged."""

from __future__ import annotations

import errno
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from made_up import MadeUpLauncher, Silent, launching, made_up_worker
from paceline import durable_files
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Task
from paceline.measure.spool import Spool
from paceline.recipe import Recipe
from paceline.results import SCHEMA, CompareResult, RunRecord, changed, convert
from paceline.results.worker_report import WorkerReport
from paceline.runs import (
    Filter,
    Folder,
    check_deletable,
    delete,
    find,
    folder_of,
    hidden_folders,
    list_runs,
    nonfinite_to_none,
    read,
    store,
    timestamped,
    write_run,
)
from paceline.runs.locks import is_locked, not_written
from paceline.runs.recovery import recover_measurements
from paceline.study import study_folder
from paceline.study.compare import Compare
from paceline.study.engine import StudyOutcome, run_study
from paceline.study.entries import make_entry
from paceline.study.run import execute
from paceline.study.run_results import run_result
from paceline.worker_files import worker_lines

RECIPE = Recipe().replace({"workers": 2, "name": "toy"})


RECORD = RunRecord(schema=SCHEMA, kind="run", name="toy", started="2026-11-19T12:00:00+0000", status="running")


def ignore(event: Any) -> None: ...


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_once(out: Path, launcher: MadeUpLauncher | None = None) -> None:
    execute(
        launcher or MadeUpLauncher(), RECIPE, make_entry("ring", RECIPE), folder=Folder(out, "toy"), on_event=ignore
    )


def disk_full_at(monkeypatch: pytest.MonkeyPatch, file: str, *, at: int = 1) -> None:
    """From the write with number `at` on, writing that file leaves half of it and then finds the disk full."""
    whole, num_writes = durable_files.write_durably, 0

    def write_durably(target: Path, content: bytes) -> None:
        nonlocal num_writes
        num_writes += target.name == file
        if target.name != file or num_writes < at:
            return whole(target, content)
        with durable_files.durable_file(target) as half:
            half.write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

    for module in (store, study_folder):
        monkeypatch.setattr(module, "write_durably", write_durably)


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


@pytest.mark.parametrize("file", ["environment.json", "0.jsonl", "1.jsonl"])
def test_a_full_disk_leaves_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    disk_full_at(monkeypatch, file)
    with pytest.raises(RunError, match=f"{file} cannot be written: the disk is full") as caught:
        run_once(tmp_path)
    stored = read(tmp_path / "toy")
    assert (stored.status, stored.error) == ("failed", str(caught.value))
    assert caught.value.__notes__ == [f"the run is stored as failed: {tmp_path / 'toy'}"]
    assert not list(tmp_path.rglob("*.part"))


def test_a_disk_too_full_for_the_status_leaves_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_full_at(monkeypatch, "summary.json", at=2)
    with pytest.raises(RunError, match=r"summary.json cannot be written: the disk is full") as caught:
        run_once(tmp_path)
    assert "the run's folder is incomplete" in caught.value.__notes__[0]
    stored = read(tmp_path / "toy")
    assert (stored.status, stored.error) == ("interrupted", "the process ended without storing a result")
    assert (tmp_path / "toy" / "workers" / "1.jsonl").is_file()


@pytest.mark.parametrize("file", ["recipe.toml", "summary.json"])
def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    disk_full_at(monkeypatch, file)
    with pytest.raises(RunError, match=f"{file} cannot be written: the disk is full"):
        run_once(tmp_path)
    assert list_runs(tmp_path) == []
    assert not list(tmp_path.rglob("*.part"))


def test_a_full_disk_keeps_the_finished_runs_of_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_full_at(monkeypatch, "summary.json", at=4)  # two writes for each run: the second cannot be stored
    with pytest.raises(RunError, match="the disk is full"):
        study(tmp_path, MadeUpLauncher(), Silent())
    [stored] = list_runs(tmp_path)
    assert (stored.status, stored.error) == ("failed", "summary.json cannot be written: the disk is full")
    inner = {item.name: item.status for item in list_runs(stored.folder / "runs")}
    assert inner == {"one-worker-1": "done", "ring-1": "interrupted"}


def test_a_study_whose_result_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk_full_at(monkeypatch, "study.json", at=3)
    with pytest.raises(RunError, match=r"study.json cannot be written: the disk is full") as caught:
        study(tmp_path, MadeUpLauncher(), Silent())
    assert "its status is not stored" in caught.value.__notes__[0]
    [stored] = list_runs(tmp_path)
    assert stored.status == "interrupted"
    assert [item.status for item in list_runs(stored.folder / "runs")] == ["done", "done"]


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
        Folder(tmp_path / "file" / "runs", "toy").begin(RECIPE, RECORD)


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
    worker = convert(made_up_worker(0, [1.0], loss=[math.inf]), WorkerReport)
    result = run_result(RECIPE, make_entry("ring", RECIPE), [worker], total_s=1.0)
    with Folder(tmp_path, "toy") as folder:
        folder.begin(RECIPE, RECORD)
        write_run(folder, changed(RECORD, status="done", result=result), [worker])
    summary, lines = folder.path / "summary.json", folder.path / "workers" / "0.jsonl"
    assert json.loads(summary.read_text(), parse_constant=pytest.fail)["result"]["curve"]["loss"] == [None]
    assert json.loads(lines.read_text(), parse_constant=pytest.fail)["loss"] is None


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
    ("error", "status", "reason"),
    [
        (WorkerError(1, "died"), "failed", "worker 1 died"),
        (UsageError("no"), "failed", "no"),
        (ZeroDivisionError("a bug"), "failed", "ZeroDivisionError: a bug"),
        (KeyboardInterrupt(), "interrupted", ""),
    ],
)
def test_an_unfinished_run_is_kept_and_marked(tmp_path: Path, error: BaseException, status: str, reason: str) -> None:
    with pytest.raises(type(error)):
        run_once(tmp_path, failing(error, 0))
    stored = read(tmp_path / "toy")
    assert (stored.status, stored.error) == (status, reason)
    assert list(stored.results) == []


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


def test_a_run_is_visible_and_running_from_its_start(tmp_path: Path) -> None:
    def look(task: Task, number: int) -> list[dict[str, Any]]:
        del number
        [stored] = list_runs(tmp_path)
        assert (stored.status, stored.name, stored.recipe) == ("running", "toy", RECIPE.replace({"strategy": "ring"}))
        assert stored.environment.num_cores is not None
        with pytest.raises(UsageError, match=r"run '.*toy' is running; end it first"):
            check_deletable(stored.folder, tmp_path)
        with pytest.raises(UsageError, match=r"run '.*toy' is being run by another process"):
            Folder.reopen(stored.folder)
        return [made_up_worker(rank, [1.0]) for rank in range(task.num_workers)]

    run_once(tmp_path, MadeUpLauncher(look))
    assert read(tmp_path / "toy").status == "done"


def test_a_reopened_folder_is_running_until_it_is_closed(tmp_path: Path) -> None:
    with pytest.raises(WorkerError):
        run_once(tmp_path, failing(WorkerError(1, "died"), 0))
    with Folder.reopen(tmp_path / "toy") as folder:
        assert (read(folder.path).status, read(folder.path).error) == ("running", "")
    assert (read(folder.path).status, read(folder.path).error) == (
        "interrupted",
        "the process ended without storing a result",
    )
    execute(
        MadeUpLauncher(),
        RECIPE,
        make_entry("ring", RECIPE),
        folder=Folder.reopen(folder.path),
        on_event=ignore,
    )
    assert read(folder.path).status == "done"
    assert names(tmp_path) == ["toy"]


def test_last_is_the_newest_that_is_not_running(tmp_path: Path) -> None:
    with Folder(tmp_path, "living") as folder:
        folder.begin(RECIPE, changed(RECORD, started="2099-01-01T00:00:00+0000"))
        assert find("last", tmp_path).name == "living"  # there is no other
        run_once(tmp_path)
        assert find("last", tmp_path).name == "toy"
        assert folder_of("last", tmp_path).name == "toy"
        with pytest.raises(UsageError, match="'last~1' does not exist"):
            find("last~1", tmp_path)
        assert [item.name for item in Filter(status="running").apply(list_runs(tmp_path))] == ["living"]
    assert find("last", tmp_path).name == "living"  # it has ended


KILLED = """
import os, signal, sys
from pathlib import Path
from array import array
from paceline.measure.spool import Spool
from paceline.recipe import Recipe
from paceline.results import RunRecord
from paceline.runs import Folder

folder = Folder(Path(sys.argv[1]), "killed")
folder.begin(Recipe(), RunRecord(schema=1, kind="run", name="killed", started="", status="running"))
spool = Spool(folder.path / "workers" / "0.jsonl", {"kind": "worker", "rank": 0}, 0.0)
spool.write({"kind": "sample", "time_s": 1.0})
spool.put(array("d", [0, 5, 1.0, 0.25, 0.0, 2.5, 1, 2, 2, 0]))  # step 5
spool.put(array("d", [0, 6, 1.0, 0.25]))  # a part of step 6
while spool._queue.qsize():
    pass
print(flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_is_interrupted_and_its_measurements_are_readable(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file = tmp_path / "killed" / "workers" / "0.spool"
        assert find("killed", tmp_path).status == "running"
        assert file.is_file()  # a folder that is written to is not changed
        process.communicate(timeout=60)
    with (tmp_path / "killed" / "workers" / "0.jsonl").open("a") as lines:
        lines.write('{"kind":"samp')  # a line that was cut off
    stored = find("last", tmp_path)
    assert (stored.status, stored.error) == ("interrupted", "the process ended without storing a result")
    assert not file.exists()
    assert [line["kind"] for line in worker_lines(file.with_suffix(".jsonl"))] == ["worker", "sample", "step", "end"]
    said = run_command("runs", "--out", str(tmp_path), "show", "killed")
    assert "the process ended without storing a result" in said.out
    assert "No result. Steps that workers recorded before the end:" in said.out


def test_an_interrupted_recovery_starts_again(tmp_path: Path) -> None:
    """A worker or a reader that was killed while it converted the spool file has left some of the lines."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdin=subprocess.DEVNULL) as process:
        process.wait(timeout=60)
    file = tmp_path / "killed" / "workers" / "0.spool"
    with file.with_suffix(".jsonl").open("a") as lines:
        lines.write('{"kind":"step","step":5,"iteration_s":0.25}\n{"kind":"end","dropped":0,"complete":false}\n')
    find("killed", tmp_path)
    assert [line["kind"] for line in worker_lines(file.with_suffix(".jsonl"))] == ["worker", "sample", "step", "end"]


def test_measurements_of_a_worker_that_still_runs_are_left_alone(tmp_path: Path) -> None:
    """A worker may outlive its killed parent for a moment."""
    spool = Spool(tmp_path / "workers" / "0.jsonl", {"kind": "head", "rank": 0}, 0.0)
    try:
        recover_measurements(tmp_path)
        assert (tmp_path / "workers" / "0.spool").is_file()
    finally:
        spool.close(lambda moment: moment)
    kinds = [line["kind"] for line in worker_lines(tmp_path / "workers" / "0.jsonl")]
    assert kinds == ["head", "end"]


def test_a_writer_waits_for_a_reader_that_recovers_measurements(tmp_path: Path) -> None:
    run_once(tmp_path)
    with not_written(tmp_path / "toy") as is_free:
        assert is_free
        assert not is_locked(tmp_path / "toy")  # readers do not exclude each other
        thread = threading.Thread(target=lambda: Folder.reopen(tmp_path / "toy").close())
        thread.start()
        time.sleep(0.05)
        assert read(tmp_path / "toy").status == "done"
    thread.join(10)
    assert read(tmp_path / "toy").status == "interrupted"


def test_folders_of_earlier_versions_are_left_alone_and_listed(tmp_path: Path) -> None:
    for name in (".left.abc.host-99999.part", ".empty.abc.host-99999.part"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / ".left.abc.host-99999.part" / "checkpoints" / "epoch-1.safetensors").write_text("")
    run_once(tmp_path)
    assert [folder.name for folder in hidden_folders(tmp_path)] == [".left.abc.host-99999.part"]
    said = run_command("runs", "--out", str(tmp_path), width=300)
    assert "1 folder of unfinished runs of an earlier version: " in said.out
    assert ".left.abc" in said.out


def test_a_deletion_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    for _ in range(2):
        run_once(tmp_path)
    (tmp_path / "toy").rename(tmp_path / ".toy.01234567.deleted")
    assert [item.name for item in list_runs(tmp_path)] == ["toy-2"]
    delete(tmp_path / "toy-2")
    assert names(tmp_path) == []
