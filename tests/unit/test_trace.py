"""One trace of all workers: tracks, arrows, counters, and a file that viewers read."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.trace import trace_lines
from paceline.errors import UsageError
from paceline.measure.steps import StepRange
from paceline.measure.trace_events import WorkerLines, merged_events, pid_of
from paceline.measure.trace_file import MOST_STEPS, NAME, write_merged
from paceline.measure.trace_format import Arrows, Slice, lanes, nested
from paceline.study.run_analysis import trace_run
from trace_format import FormatError, check_events, read_strictly, tracks
from trace_lines import STEP_S, Line, worker_lines, write_lines


def made_up_run(tmp_path: Path, *, num_workers: int = 3, num_steps: int = 20, late_s: float = 0.0) -> Path:
    lines = {rank: worker_lines(rank, num_workers, num_steps, late_s=late_s) for rank in range(num_workers)}
    return write_lines(tmp_path / "run", lines)


def piece(begin_ns: int, end_ns: int) -> Slice:
    return Slice(name="piece", category="test", begin_ns=begin_ns, end_ns=end_ns)


def events_of(*workers: list[Line]) -> list[dict[str, Any]]:
    found = [WorkerLines.of(rank, lines, StepRange(0, 1)) for rank, lines in enumerate(workers)]
    events = merged_events(found, Arrows())
    check_events(events)
    return events


def op_line(op: str, begin_s: float, end_s: float, **more: Any) -> Line:
    return {
        "kind": "op", "step": 0, "number": 0, "op": op, "bytes": 4, "peer": None, "tag": 0, "begin_s": begin_s,
        "end_s": end_s, **more,
    }  # fmt: skip


def arrow_ends(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Ranks at both ends of every arrow."""
    starts = {event["id"]: event["pid"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["pid"] for event in events if event["ph"] == "f"}
    ranks = {pid_of(rank): rank for rank in range(64)}
    return sorted((ranks[starts[number]], ranks[ends[number]]) for number in starts)


def test_a_run_has_a_process_per_worker_in_order_of_rank(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, num_workers=11)
    events = read_strictly(write_merged(run).path)
    names = list(tracks(events))
    assert names == [f"worker {rank} on h, process {100 + rank}" for rank in range(11)]
    assert tracks(events)[names[10]] == ["loop", "communication", "communication 2"]


def test_phases_steps_and_where_a_worker_stood_still_are_on_the_loops_track(tmp_path: Path) -> None:
    run = made_up_run(tmp_path)
    events = read_strictly(write_merged(run, steps=StepRange(4, 6)).path)
    loop = [event for event in events if event["ph"] == "X" and event["tid"] == pid_of(1)]
    phases = Counter(event["name"] for event in loop)
    assert phases == {
        "step 4": 1, "step 5": 1, "data": 2, "forward": 2, "backward": 2, "optimizer": 2, "blocked in all_reduce": 2,
    }  # fmt: skip
    step = next(event for event in loop if event["name"] == "step 5")
    assert (step["ts"], step["dur"]) == (pytest.approx(5e6 * STEP_S), pytest.approx(9500))
    assert step["args"] == {"loss": 2.5, "num_samples": 8, "sent_bytes": 6 * 4400}


def test_arrows_join_every_send_to_the_receive_of_the_same_message(tmp_path: Path) -> None:
    run = made_up_run(tmp_path)
    events = read_strictly(write_merged(run, steps=StepRange(3, 5)).path)
    assert arrow_ends(events) == sorted([(0, 1), (1, 2), (2, 0)] * 2)
    assert {event["name"] for event in events if event["ph"] == "s"} == {"message"}


def test_messages_with_other_tags_or_numbers_are_not_joined() -> None:
    send = op_line("send", 0.1, 0.2, peer=1)
    for other in ({"tag": 1}, {"number": 1}, {"peer": 2}):
        assert arrow_ends(events_of([send], [op_line("recv", 0.1, 0.2, **{"peer": 0, **other})])) == []
    assert arrow_ends(events_of([send], [op_line("recv", 0.1, 0.2, peer=0)])) == [(0, 1)]


def test_a_message_that_clocks_put_before_its_sending_has_no_arrow() -> None:
    late = [op_line("send", 0.3, 0.4, peer=1)]
    assert arrow_ends(events_of(late, [op_line("recv", 0.1, 0.2, peer=0)])) == []


def test_a_collectives_arrows_lead_from_the_last_to_come_to_those_who_waited(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, late_s=0.001)
    events = read_strictly(write_merged(run, steps=StepRange(7, 8)).path)
    last = [event for event in events if event["ph"] == "s" and event["name"] == "last arrival"]
    assert {event["pid"] for event in last} == {pid_of(2)}
    ends = {event["pid"] for event in events if event["ph"] == "f" and event["name"] == "last arrival"}
    assert ends == {pid_of(0), pid_of(1)}


@pytest.mark.parametrize(
    "op, begins, expected",
    [
        ("all_reduce", [0.1, 0.2, 0.3], [(2, 0), (2, 1)]),
        ("all_reduce", [0.3, 0.29999, 0.1], [(0, 2)]),  # ten microseconds are not worth an arrow
        ("broadcast", [0.2, 0.1, 0.3], [(0, 1)]),  # only the root is waited for
        ("gather", [0.1, 0.2, 0.3], [(2, 0)]),  # only the root waits
        ("gather", [0.3, 0.1, 0.2], []),
    ],
)
def test_who_is_waited_for_depends_on_the_collective(
    op: str, begins: list[float], expected: list[tuple[int, int]]
) -> None:
    root = 0 if op in ("broadcast", "gather") else None
    workers = [[op_line(op, begin, 0.4, peer=root)] for begin in begins]
    assert arrow_ends(events_of(*workers)) == expected


def test_one_who_left_a_collective_before_the_last_came_did_not_wait() -> None:
    workers = [[op_line("all_reduce", 0.1, 0.2)], [op_line("all_reduce", 0.3, 0.4)]]
    assert arrow_ends(events_of(*workers)) == []


def test_resources_are_counters_and_bytes_are_rates(tmp_path: Path) -> None:
    run = made_up_run(tmp_path, num_workers=1, num_steps=100)
    events = read_strictly(write_merged(run, steps=StepRange(45, 55)).path)
    counters = [event for event in events if event["ph"] == "C"]
    cpu = [event for event in counters if event["name"] == "CPU (%)"]
    assert [event["ts"] for event in cpu] == [pytest.approx(4e5), pytest.approx(6e5)]  # one on each side of the steps
    sent = [event for event in counters if event["name"] == "network sent (bytes/s)"]
    assert [event["args"]["value"] for event in sent] == [pytest.approx(1e6, rel=1e-3)]
    assert not any("GPU" in event["name"] for event in counters)  # there is none, which is not zero


def test_steps_by_default_are_the_middle_of_a_long_run(tmp_path: Path) -> None:
    written = write_merged(made_up_run(tmp_path, num_workers=2, num_steps=400))
    assert written.steps == StepRange(150, 250)
    assert written.steps.end - written.steps.first == MOST_STEPS
    assert written.path.name == NAME


def test_steps_by_default_follow_each_other_where_a_long_run_has_gaps(tmp_path: Path) -> None:
    lines = [line for line in worker_lines(0, 1, 90) if line.get("step", 0) < 30 or line["step"] % 2 == 0]
    written = write_merged(write_lines(tmp_path / "run", {0: lines}))
    assert written.steps == StepRange(0, 31)


def test_steps_by_default_are_few_where_each_is_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.measure.trace_file.MOST_LINES", 50)
    written = write_merged(made_up_run(tmp_path, num_workers=2, num_steps=9))
    assert written.steps == StepRange(3, 6)  # 16 lines a step


def test_a_range_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    lines = [line for line in worker_lines(0, 1, 1004) if line.get("step", 0) <= 1000 or line["kind"] == "step"]
    run = write_lines(tmp_path / "run", {0: lines})
    with pytest.raises(
        UsageError, match=r"nothing was recorded in steps 1001 to 1002, .* nearest recorded step is 1000"
    ):
        write_merged(run, steps=StepRange(1001, 1003))
    with pytest.raises(UsageError, match="reaches beyond the run, which has 1004 steps, 0 to 1003"):
        write_merged(run, steps=StepRange(1000, 1005))
    assert not list(run.glob("*.gz*"))


def test_a_run_without_spans_says_so(tmp_path: Path) -> None:
    old = [{"step": step, "iteration_s": 0.1, "data_s": 0.0, "loss": 1.0} for step in range(3)]
    with pytest.raises(UsageError, match="nothing to trace"):
        write_merged(write_lines(tmp_path / "run", {0: old}))


def test_the_merged_trace_stays_out_of_the_folder_of_the_workers_own(tmp_path: Path) -> None:
    run = made_up_run(tmp_path)
    (run / "trace").mkdir()
    with pytest.raises(UsageError, match="in the folder of the workers' own traces"):
        write_merged(run, run / "trace" / "merged.json.gz")


def test_a_study_is_not_a_run(tmp_path: Path) -> None:
    study = tmp_path / "study"
    run = made_up_run(study / "runs")
    study_values = {
        "schema": 1,
        "kind": "study",
        "name": "toy",
        "started": "",
        "status": "done",
        "recipe": {},
        "environment": {},
    }
    (study / "study.json").write_text(json.dumps(study_values))
    with pytest.raises(UsageError, match=rf"is a study.*name one of its runs: {run}"):
        trace_run(study)
    assert trace_run(run).num_workers == 3


def test_what_was_written_is_said_with_how_to_open_it(tmp_path: Path) -> None:
    text = "\n".join(trace_lines(trace_run(made_up_run(tmp_path), steps=StepRange(3, 5))))
    assert "steps 3 to 4 of 3 workers" in text
    assert "6 arrows" in text
    assert "ui.perfetto.dev" in text
    assert "chrome://tracing" in text
    assert "differ by at most 20 microseconds" in text


def test_a_file_that_is_not_packed_holds_the_same(tmp_path: Path) -> None:
    run = made_up_run(tmp_path)
    packed, plain = write_merged(run).path, write_merged(run, tmp_path / "plain.json").path
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_slices_that_cross_are_cut_at_the_one_they_began_in() -> None:
    cut = nested([piece(0, 10), piece(5, 12), piece(6, 11), piece(10, 12)])
    assert [(one.begin_ns, one.end_ns) for one in cut] == [(0, 10), (5, 10), (6, 10), (10, 12)]


def test_things_under_way_at_once_lie_in_lanes_of_their_own() -> None:
    assert lanes([piece(0, 10), piece(2, 4), piece(3, 5), piece(4, 6), piece(10, 12)]) == [0, 1, 2, 1, 0]


GOOD: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": "p"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}},
    {"ph": "X", "name": "a", "cat": "c", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0, "args": {}},
    {"ph": "X", "name": "b", "cat": "c", "pid": 1, "tid": 1, "ts": 2.0, "dur": 1.0, "args": {}},
    {"ph": "s", "name": "m", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 1.5},
    {"ph": "f", "name": "m", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 2.5, "bp": "e"},
]


@pytest.mark.parametrize(
    "index, change",
    [
        (0, {"args": {"name": 3}}),
        (1, {"tid": 2}),
        (2, {"ph": "B"}),
        (2, {"pid": "one"}),
        (2, {"dur": 0}),
        (3, {"dur": 9.0}),  # crosses the slice that it began in
        (3, {"ts": 2.0001}),
        (4, {"id": 2}),
        (4, {"ts": 3.0}),
        (5, {"bp": "x"}),
        (5, {"ts": 6.0}),  # the slice is closed at that moment
        (5, {"cat": "d"}),
    ],
)
def test_the_check_of_the_format_can_fail(index: int, change: dict[str, Any]) -> None:
    check_events(GOOD)
    with pytest.raises(FormatError):
        check_events([{**event, **change} if i == index else event for i, event in enumerate(GOOD)])
