"""Traces as a user makes them: a profiled run, one trace of all workers, and refusals before anything starts."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command import run_in
from trace_format import read_strictly, tracks

WORKERS = 3


def paceline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, *arguments)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with two runs, of each of which steps 3 and 4 were profiled."""
    folder = tmp_path_factory.mktemp("profiled")
    command = [sys.executable, "-m", "paceline", "compare", "--workers", str(WORKERS), "--iterations", "8"]
    command += ["--strategies", "ring,overlap", "--profile", "3:5", "--no-report"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "profiler" not in done.stderr  # torch's own chatter
    return next((folder / "runs").iterdir())


def run_of(study: Path, label: str) -> Path:
    return study / "runs" / f"{label}-1"


@pytest.mark.parametrize("label", ["ring", "overlap"])
def test_every_worker_of_every_run_leaves_its_trace(study: Path, label: str) -> None:
    files = sorted((run_of(study, label) / "trace").iterdir())
    assert [file.name for file in files] == [f"rank-{rank}.json.gz" for rank in range(WORKERS)]
    for rank, file in enumerate(files):
        trace: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
        info = trace["distributedInfo"]
        assert (info["rank"], info["world_size"]) == (rank, WORKERS)
        names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
        assert [name for name in names if name.startswith("ProfilerStep")] == ["ProfilerStep#3", "ProfilerStep#4"]
        phases = ("data", "forward", "backward", "optimizer")
        assert [names.count(f"paceline.{phase}") for phase in phases] == [2] * len(phases)


@pytest.mark.parametrize("label", ["ring", "overlap"])
def test_one_trace_of_all_workers(study: Path, label: str, tmp_path: Path) -> None:
    run = run_of(study, label)
    done = paceline("trace", str(run), "-o", "all.json.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"steps 3 to 4 of {WORKERS} workers" in done.stdout
    assert "ui.perfetto.dev" in done.stdout
    events = read_strictly(tmp_path / "all.json.gz")
    found = tracks(events)
    assert [name.split()[1] for name in found] == [str(rank) for rank in range(WORKERS)]
    for threads in found.values():
        assert threads[:2] == ["loop", "communication"]
        assert any(thread.startswith("profiled: ") for thread in threads)
    if label == "ring":  # every message is received, and clocks of one host agree
        sends = sum(event["ph"] == "X" and event["name"].startswith("send to") for event in events)
        assert sends > 0
        assert sum(event["ph"] == "s" and event["name"] == "message" for event in events) == sends


def test_profiled_phases_lie_where_the_worker_says_they_were(study: Path, tmp_path: Path) -> None:
    done = paceline("trace", str(run_of(study, "ring")), "-o", "all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    slices = [event for event in read_strictly(tmp_path / "all.json") if event["ph"] == "X"]
    for pid in {event["pid"] for event in slices}:
        own = sorted((e["ts"], e["dur"]) for e in slices if e["pid"] == pid and e["name"] == "backward")
        profiled = sorted((e["ts"], e["dur"]) for e in slices if e["pid"] == pid and e["name"] == "paceline.backward")
        assert len(own) == len(profiled) == 2
        for (begin, length), (profiled_begin, profiled_length) in zip(own, profiled, strict=True):
            overlap = min(begin + length, profiled_begin + profiled_length) - max(begin, profiled_begin)
            assert overlap > 0  # two clocks of a host that were hours apart would show; a busy machine does not


def test_a_study_is_refused_and_its_runs_are_named(study: Path, tmp_path: Path) -> None:
    done = paceline("trace", str(study), cwd=tmp_path)
    assert done.returncode == 2
    assert "name one of its runs" in done.stderr
    assert "ring-1" in done.stderr


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--profile", "ten"], "is not a range of steps"),
        (["--profile", "5:5"], "contains no step"),
        (["--profile", "3:9"], "reaches beyond the run, which has 8 steps, 0 to 7"),
    ],
)
def test_a_wrong_range_is_said_before_anything_starts(arguments: list[str], reason: str, tmp_path: Path) -> None:
    done = paceline("run", "--workers", "2", "--iterations", "8", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--steps", "4"], "is not a range of steps"),
        (["--steps", "0:9"], "reaches beyond the run"),
        (["-o", "all.txt"], "ends in .json or .json.gz"),
        (["-o", "nowhere/all.json"], "does not exist"),
    ],
)
def test_a_wrong_request_for_a_trace_writes_nothing(
    study: Path, arguments: list[str], reason: str, tmp_path: Path
) -> None:
    done = paceline("trace", str(run_of(study, "ring")), *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not list(tmp_path.iterdir())
    assert not (run_of(study, "ring") / "merged-trace.json.gz").exists()
