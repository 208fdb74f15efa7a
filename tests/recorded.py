"""Assertions on worker files: within one file, and between those of all workers of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Line = dict[str, Any]
ROUNDING_S = 2e-7  # of two times, each to seven digits


def read_workers(folder: Path) -> list[list[Line]]:
    files = sorted((folder / "workers").iterdir(), key=lambda path: int(path.stem))
    assert [path.name for path in files] == [f"{rank}.jsonl" for rank in range(len(files))]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in files]


def of_kind(lines: list[Line], kind: str) -> list[Line]:
    return [line for line in lines if line["kind"] == kind]


def assert_complete(lines: list[Line], rank: int, num_steps: int) -> None:
    """Check for a head, all steps in order, and an end without dropped lines."""
    assert lines[0]["kind"] == "head"
    assert lines[0]["rank"] == rank
    assert lines[0]["clock_error_s"] >= 0
    assert lines[-1] == {"kind": "end", "dropped": 0}
    steps = of_kind(lines, "step")
    assert [line["step"] for line in steps] == list(range(num_steps))
    sent = [line["sent_bytes"] for line in steps]
    assert sent == sorted(sent)


def assert_nested(lines: list[Line]) -> None:
    """Check that phases are within their step and do not overlap, and blocked times within operation and step."""
    steps = {line["step"]: (line["begin_s"], line["begin_s"] + line["iteration_s"]) for line in of_kind(lines, "step")}
    last_end = -1.0
    for span in of_kind(lines, "span"):
        begin, end = steps[span["step"]]
        assert last_end <= span["begin_s"] + ROUNDING_S
        assert span["begin_s"] <= span["end_s"]
        last_end = span["end_s"]
        if span["phase"] == "evaluation":
            assert span["begin_s"] >= end - ROUNDING_S
        else:
            assert begin - ROUNDING_S <= span["begin_s"]
            assert span["end_s"] <= end + ROUNDING_S
    operations = {(line["op"], line["peer"], line["tag"], line["number"]): line for line in of_kind(lines, "op")}
    assert len(operations) == len(of_kind(lines, "op")), "no operation is told twice"
    for blocked in of_kind(lines, "blocked"):
        operation = operations[blocked["op"], blocked["peer"], blocked["tag"], blocked["number"]]
        begin, end = steps[blocked["step"]]
        assert max(begin, operation["begin_s"]) - ROUNDING_S <= blocked["begin_s"] <= blocked["end_s"]
        assert blocked["end_s"] <= end + ROUNDING_S


def assert_matching(workers: list[list[Line]]) -> None:
    """Check that collectives are equal on all workers and that the k-th message sent is the k-th received."""
    collectives = [
        {line["number"]: (line["op"], line["bytes"], line["peer"], line["step"]) for line in of_kind(lines, "op")
         if line["op"] not in ("send", "recv")}
        for lines in workers
    ]  # fmt: skip
    assert all(found == collectives[0] for found in collectives)
    sent, received = messages(workers, "send"), messages(workers, "recv")
    assert sent == received


def messages(workers: list[list[Line]], op: str) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
    """Return (number, bytes) of every message, by sender, receiver and tag."""
    found = defaultdict(list)
    for rank, lines in enumerate(workers):
        for line in of_kind(lines, "op"):
            if line["op"] == op:
                ends = (rank, line["peer"]) if op == "send" else (line["peer"], rank)
                found[*ends, line["tag"]].append((line["number"], line["bytes"]))
    return {key: sorted(rows) for key, rows in found.items()}
