"""Reading workers' files: an incomplete last line is skipped, damage is reported with file and line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from made_up_lines import op, span, step_line
from paceline import worker_files as module
from paceline.errors import UsageError
from paceline.worker_files import worker_files, worker_lines

FIRST, SECOND = json.dumps(step_line(0, 0, 1)), json.dumps(step_line(1, 1, 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "0.jsonl"


@pytest.mark.parametrize("length", [1, 20, len(SECOND) - 1])
def test_a_last_line_that_was_cut_is_left_out(file: Path, length: int) -> None:
    file.write_text(f"{FIRST}\n{SECOND[:length]}")
    assert [line["step"] for line in worker_lines(file)] == [0]


def test_zeros_of_a_crash_at_the_end_are_left_out(file: Path) -> None:
    file.write_bytes(FIRST.encode() + b"\n" + bytes(100))
    assert [line["step"] for line in worker_lines(file)] == [0]


def test_an_empty_file_has_no_lines(file: Path) -> None:
    file.write_text("\n \n")
    assert list(worker_lines(file)) == []


def test_a_whole_last_line_counts_without_its_line_break(file: Path) -> None:
    file.write_text(f"{FIRST}\n{SECOND}")
    assert [line["step"] for line in worker_lines(file)] == [0, 1]


def test_old_lines_of_steps_get_their_kind(file: Path) -> None:
    file.write_text('{"step": 3, "iteration_s": 0.5}\n')
    assert list(worker_lines(file)) == [{"step": 3, "iteration_s": 0.5, "kind": "step"}]


DAMAGED: dict[str, bytes] = {
    "cut": b"{",
    "an array": b"[1]",
    "zeros": b"\x00\x00",
    "not UTF-8": b'{"a": "\xff"}',
    "nested": b'{"a": ' + b"[" * 100_000,
    "5,000 digits": b'{"step": ' + b"9" * 5000 + b"}",
    "a kind that is a list": b'{"kind": []}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named(file: Path, name: str) -> None:
    file.write_bytes(FIRST.encode() + b"\n" + DAMAGED[name] + b"\n" + SECOND.encode() + b"\n")
    with pytest.raises(UsageError, match=r"0\.jsonl' is damaged in line 2: "):
        list(worker_lines(file))


@pytest.mark.parametrize(
    "line", [step_line(0, 0, 1), span(0, "forward", 0, 1), op(0, 0, 0, 1)], ids=["step", "span", "op"]
)
@pytest.mark.parametrize("value", ["x", None, [], "missing"])
def test_values_that_readers_need_are_checked(file: Path, line: dict[str, Any], value: Any) -> None:
    for key in ("step", "iteration_s" if line["kind"] == "step" else "end_s"):
        changed = {**line, key: value}
        if value == "missing":
            del changed[key]
        file.write_text(json.dumps(changed) + "\n")
        with pytest.raises(UsageError, match=f"in line 1: {key} of a {line['kind']} is"):
            list(worker_lines(file))


def test_a_line_without_end_is_not_read_into_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LINE_BYTES", 1000)
    file.write_text(FIRST + "\n" + "[" * 5000)
    with pytest.raises(UsageError, match=r"in line 2: it is longer than 1,000 bytes"):
        list(worker_lines(file))


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        list(worker_lines(tmp_path / "7.jsonl"))


def test_files_are_found_by_rank(tmp_path: Path) -> None:
    folder = tmp_path / "workers"
    (folder / "5.jsonl").mkdir(parents=True)
    os.mkfifo(folder / "6.jsonl")
    for name in ("10", "2", "0", "notes", "²", "٣", "007", "-1", "1_0", " 4", "+3"):
        (folder / f"{name}.jsonl").write_text("")
    (folder / "3.txt").write_text("")
    assert list(worker_files(tmp_path)) == [0, 2, 10]


HEAD = {"kind": "head", "host": "a", "pid": 3, "clock_offset_s": 0.0, "clock_error_s": None}
SAMPLE = {"kind": "sample", "time_s": 0.5, "cpu_percent": None, "rss_bytes": 3}


@pytest.mark.parametrize(
    ("line", "changes", "reason"),
    [
        (
            step_line(0, 0, 1),
            {"iteration_s": float("inf")},
            "iteration_s of a step is inf, which is no number of a worker",
        ),
        (step_line(0, 0, 1), {"begin_s": None}, "begin_s of a step is None"),
        (step_line(0, 0, 1), {"begin_s": float("nan")}, "begin_s of a step is nan, which"),
        (step_line(0, 0, 1), {"loss": [2.5]}, r"loss of a step is \[2.5\]"),
        (step_line(0, 0, 1), {"num_samples": 2.5}, "num_samples of a step is 2.5"),
        (step_line(0, 0, 1), {"step": 10**30}, "step of a step is 10+, which"),
        (HEAD, {"clock_error_s": "small"}, "clock_error_s of a head is 'small'"),
        (HEAD, {"host": 3}, "host of a head is 3"),
        (SAMPLE, {"time_s": "early"}, "time_s of a sample is 'early'"),
        (SAMPLE, {"rss_bytes": [1]}, r"rss_bytes of a sample is \[1\]"),
        (SAMPLE, {"new_key": {}}, "new_key of a sample is {}"),
        (op(0, 0, 0.0, 1.0), {"peer": ...}, "peer of a op is missing"),
        (op(0, 0, 0.0, 1.0), {"end_s": 1e300}, "end_s of a op is 1e.300, which"),
        (op(0, 0, 0.0, 1.0), {"medium": 3}, "medium of a op is 3"),
    ],
)
def test_values_that_no_worker_writes_are_refused(
    file: Path, line: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    changed = {key: value for key, value in {**line, **changes}.items() if value is not ...}
    file.write_text(f"{FIRST}\n{json.dumps(changed)}\n{SECOND}\n")
    with pytest.raises(UsageError, match=rf"0\.jsonl' is damaged in line 2: {reason}"):
        list(worker_lines(file))


def test_values_that_a_worker_does_not_know_are_null(file: Path) -> None:
    lines = [HEAD, SAMPLE, {**step_line(0, 0, 1), "loss": None}]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert list(worker_lines(file)) == lines
