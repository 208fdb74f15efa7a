"""Profiled steps: which, in which file, on whose clock."""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import UsageError
from paceline.measure.observer import Observers, RunFacts
from paceline.measure.steps import StepRange, check_within
from paceline.measure.torch_profiler import ProfiledTrace, Profiler, profiled_events, rank_file, read_profiled
from paceline.measure.trace_file import write_merged
from paceline.measure.trace_format import Arrows
from trace_format import check_events, read_strictly, tracks
from trace_lines import worker_lines, write_lines


@pytest.mark.parametrize(
    "text", ["10", "a:b", "10:", ":5", "-1:5", "1.5:3", "10-15", "1:2:3", "\N{ARABIC-INDIC DIGIT ONE}:3"]
)
def test_what_is_not_a_range_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"--profile .* is not a range of steps; write FIRST:END, .*END is excluded"):
        StepRange.parse(text, "--profile")


@pytest.mark.parametrize("text", ["10:10", "15:10"])
def test_an_empty_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="contains no step"):
        StepRange.parse(text, "--steps")


def test_the_end_is_not_among_the_steps() -> None:
    steps = StepRange.parse("10:15", "--profile")
    assert [step for step in range(20) if step in steps] == [10, 11, 12, 13, 14]
    assert str(steps) == "steps 10 to 14"
    check_within(steps, 15, "--profile")
    with pytest.raises(UsageError, match=r"--profile 10:15 reaches beyond the run, which has 14 steps, 0 to 13"):
        check_within(steps, 14, "--profile")


def profile_steps(folder: Path, *, total: int = 6, run_time: Callable[[float], float], fails_in: int = -1) -> None:
    """A loop of one worker with steps 2 and 3 profiled."""
    profiler = Profiler(StepRange(2, 4), backend="torch", has_gpu=False)
    observers = Observers([profiler])
    facts = RunFacts(
        rank=5, world_size=8, total_steps=total, steps_per_epoch=total, folder=str(folder), write=print,
        run_time=run_time,
    )  # fmt: skip
    observers.run_begins(facts)
    try:
        for step in range(total):
            observers.step_begins(step)
            begin = observers.begin_phase("forward")
            torch.ones(10).cumsum(0)
            if step == fails_in:
                raise RuntimeError("made up")
            observers.end_phase("forward", begin)
            observers.step_ends(step, {})
    finally:
        observers.run_ends()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")


def load(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(rank_file(folder, 5).read_bytes()))
    return loaded


def names(folder: Path) -> list[str]:
    return [event["name"] for event in load(folder)["traceEvents"] if event["ph"] == "X"]


def test_only_the_chosen_steps_are_in_the_trace_with_their_phases(tmp_path: Path) -> None:
    profile_steps(tmp_path, run_time=lambda moment: moment)
    found = names(tmp_path)
    assert [name for name in found if name.startswith("ProfilerStep")] == ["ProfilerStep#2", "ProfilerStep#3"]
    assert found.count("paceline.forward") == 2
    assert found.count("aten::cumsum") == 2


def test_a_trace_says_whose_it_is_where_holistic_trace_analysis_looks(tmp_path: Path) -> None:
    profile_steps(tmp_path, run_time=lambda moment: moment)
    assert load(tmp_path)["distributedInfo"] == {"backend": "torch", "rank": 5, "world_size": 8}
    # It does not parse for that, but takes the first line that matches this.
    with gzip.open(rank_file(tmp_path, 5), "rt") as lines:
        first = next(match for line in lines if (match := re.search(r'"rank":\s+(\d+)', line)))
    assert first[1] == "5"


def test_a_run_that_fails_in_a_profiled_step_leaves_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="made up"):
        profile_steps(tmp_path, run_time=lambda moment: moment, fails_in=3)
    assert "ProfilerStep#2" in names(tmp_path)


def test_a_run_that_ends_before_the_chosen_steps_has_no_trace(tmp_path: Path) -> None:
    profile_steps(tmp_path, total=1, run_time=lambda moment: moment)
    assert not rank_file(tmp_path, 5).exists()


def test_profiled_events_are_put_on_the_runs_clock(tmp_path: Path) -> None:
    origin = time.perf_counter() - 1000.0  # the run began long before, by a clock that is far from this one
    before = time.perf_counter() - origin
    profile_steps(tmp_path, run_time=lambda moment: moment - origin)
    after = time.perf_counter() - origin
    trace = read_profiled(tmp_path, 5)
    assert trace is not None
    events = profiled_events(trace, 60_000, Arrows())
    slices = [event for event in events if event["ph"] == "X"]
    assert slices
    assert all(before * 1e6 <= event["ts"] <= event["ts"] + event["dur"] <= after * 1e6 for event in slices)


def test_workers_own_traces_are_merged_beside_their_tracks(tmp_path: Path) -> None:
    run = write_lines(tmp_path / "run", {5: worker_lines(5, 6, 6)})
    profile_steps(run, run_time=lambda moment: moment)
    written = write_merged(run)
    assert (written.steps, written.num_profiled) == (StepRange(2, 4), 1)
    threads = tracks(read_strictly(written.path))["worker 5 on h, process 105"]
    assert threads[:3] == ["loop", "communication", "communication 2"]
    assert threads[3].startswith("profiled: thread ")
    assert write_merged(run, steps=StepRange(0, 2)).num_profiled == 0


def test_kernels_lie_on_a_track_of_their_stream_with_an_arrow_from_their_launch() -> None:
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 42,
        "tid": 42,
        "ts": 10.0,
        "dur": 2.0,
    }
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 20.0, "dur": 5.0, "args": {}}
    arrow = {"cat": "ac2g", "name": "ac2g", "id": 3}
    ends = [
        {"ph": "s", **arrow, "pid": 42, "tid": 42, "ts": 10.0},
        {"ph": "f", "bp": "e", **arrow, "pid": 0, "tid": 7, "ts": 20.0},
    ]
    own = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
    trace = ProfiledTrace(StepRange(0, 1), 1000, [launch, kernel, *ends, own])
    events = profiled_events(trace, 10_000, Arrows())
    naming = {"ph": "M", "name": "process_name", "pid": 10_000, "tid": 10_000, "args": {"name": "worker 0"}}
    check_events([naming, *events])
    titles = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert titles == {"profiled: GPU 0, stream 7", "profiled: thread 42"}
    assert [(event["ph"], event["ts"]) for event in events if event["ph"] in "sf"] == [("s", 11.0), ("f", 21.0)]


def test_a_damaged_trace_of_a_worker_is_named(tmp_path: Path) -> None:
    run = write_lines(tmp_path / "run", {0: worker_lines(0, 1, 6)})
    (run / "trace").mkdir()
    for content in (b"no gzip", gzip.compress(b"{"), gzip.compress(b'{"traceEvents": []}'), gzip.compress(b"{}")[:-9]):
        rank_file(run, 0).write_bytes(content)
        with pytest.raises(UsageError, match=r"rank-0\.json\.gz is damaged, or not a trace"):
            write_merged(run)
