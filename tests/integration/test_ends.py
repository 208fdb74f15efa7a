"""Processes that end well: killed parents, stopped workers, output that cannot be written, and two equal commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.launch.process_host import WorkerProcess, start_process
from paceline.runs import list_runs, read

PACELINE = [sys.executable, "-m", "paceline"]
TINY = ["--workers", "2", "--train-samples", "100", "--test-samples", "50", "--batch-size", "20", "--epochs", "1"]
LONG = [*TINY[:-1], "100000", "--log-every", "5"]
ENDS_S = 20.0

PARENT = """
import os, sys, time
from paceline.launch.process_host import start_process
worker = start_process({**os.environ})
assert worker.pipe.has_message(100)
print(worker.popen.pid, flush=True)
time.sleep(1000)
"""


def wait_until_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run after a while. A zombie, which waits for its parent, is gone."""
    deadline = time.monotonic() + ENDS_S
    left = processes
    while left and time.monotonic() < deadline:
        left = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
def test_a_stopped_worker_ends_with_its_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        worker.suspend()
        parent.kill()
    left = wait_until_gone([worker])
    for process in left:
        process.kill()
    assert not left


def test_a_worker_outlives_the_thread_that_started_it() -> None:
    started: list[WorkerProcess] = []
    thread = threading.Thread(target=lambda: started.append(start_process({**os.environ})))
    thread.start()
    thread.join()
    [worker] = started
    try:
        assert worker.pipe.has_message(100)
        assert worker.popen.poll() is None
    finally:
        worker.ask_to_end()
        worker.end(time.monotonic() + 5)


def start_long_run(folder: Path) -> subprocess.Popen[str]:
    """Start a run that does not end, and wait until it has trained some steps."""
    popen = subprocess.Popen(
        [*PACELINE, "run", *LONG], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert popen.stdout is not None
    while " of epoch " not in popen.stdout.readline():
        assert popen.poll() is None
    return popen


def test_a_run_that_is_killed_keeps_its_measurements(tmp_path: Path) -> None:
    popen = start_long_run(tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    assert read(folder).status == "running"
    workers = psutil.Process(popen.pid).children()
    popen.kill()
    popen.communicate()
    assert not wait_until_gone(workers)
    stored = read(folder)
    assert (stored.status, stored.error) == ("interrupted", "the process ended without storing a result")
    steps = [json.loads(line) for line in (folder / "workers" / "1.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in steps]
    assert (kinds[0], kinds[-1], "step" in kinds) == ("head", "end", True)  # written every second
    assert not list(folder.rglob("*.spool"))


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stores_the_run_as_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    popen = start_long_run(tmp_path)
    popen.send_signal(number)
    _, errors = popen.communicate(timeout=60)
    assert popen.returncode == 1
    assert errors.startswith("paceline: interrupted: all workers are stopped; the run is stored as interrupted: runs/")
    [stored] = list_runs(tmp_path / "runs")
    assert stored.status == "interrupted"


@pytest.mark.slow
def test_nohup_keeps_a_run_going(tmp_path: Path) -> None:
    command = ["nohup", *PACELINE, "run", *TINY, "--log-every", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as popen:
        assert popen.stdout is not None
        popen.stdout.readline()
        popen.send_signal(signal.SIGHUP)
        popen.stdout.read()
    assert popen.returncode == 0
    assert read(next((tmp_path / "runs").iterdir())).status == "done"


def ran_into(output: Any, folder: Path, *words: str) -> tuple[int, str]:
    command = [*PACELINE, "run", *TINY, "--log-every", "1", *words]
    done = subprocess.run(
        command, cwd=folder, stdout=output, stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    [stored] = list_runs(folder / "runs")
    assert stored.status == "done"
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [(), pytest.param(("--json", "-"), marks=pytest.mark.slow)])
def test_a_run_without_a_reader_is_stored(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code, errors = ran_into(writing, tmp_path, *words)
    os.close(writing)
    assert (code, "Traceback" in errors) == (0, False)
    assert words or not errors


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--json", "-")])
def test_a_run_on_a_full_disk_is_stored(tmp_path: Path, words: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        code, errors = ran_into(full, tmp_path, *words)
    assert code == 1
    assert errors.endswith("paceline: standard output cannot be written: No space left on device\n")
    assert words or errors.count("\n") == 1


@pytest.mark.slow
def test_live_bars_in_a_terminal_that_is_closed(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [*PACELINE, "run", *TINY, "--log-every", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True, env={**os.environ, "TERM": "xterm"}
    ) as popen:
        os.close(theirs)
        os.read(ours, 100)  # the first line
        os.close(ours)
        assert popen.stderr is not None
        errors = popen.stderr.read()
    assert (popen.returncode, errors) == (0, "")
    [stored] = list_runs(tmp_path / "runs")
    assert stored.status == "done"


@pytest.mark.slow
def test_two_equal_studies_never_share_a_folder(tmp_path: Path) -> None:
    words = ["compare", *TINY, "--strategies", "none,ring", "--no-report"]
    both = [
        subprocess.Popen([*PACELINE, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [popen.communicate(timeout=170)[1] for popen in both]
    refused = [error for popen, error in zip(both, errors, strict=True) if popen.returncode]
    assert all(
        "is being run by another process; wait until it ends, or start another with --fresh" in e for e in refused
    )
    studies = list_runs(tmp_path / "runs")
    assert len(studies) == 2 - len(refused)
    for study in studies:
        runs = list_runs(study.folder / "runs")
        assert [study.status, *(run.status for run in runs)] == ["done"] * 3
        assert sorted(run.name for run in runs) == ["none-1", "ring-1"]
