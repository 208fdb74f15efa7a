"""The thread that writes a worker's file: bounded, never in the way, and honest about what it could not write."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from paceline.measure import spool as module
from paceline.measure.spool import MOST_QUEUED, SPAN, SUFFIX, Spool, recover

HEAD = {"kind": "head", "rank": 1}


def rows(first: int, count: int) -> array[float]:
    return array("d", [number for step in range(first, first + count) for number in (SPAN, step, 1, 10.0, 11.0)])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def same(moment: float) -> float:
    return moment


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_head_first_end_last_and_everything_between(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "workers" / "1.jsonl", HEAD, 0.0)
    spool.put(rows(0, 3000))
    spool.write({"kind": "sample", "cpu_percent": float("nan")})
    spool.put(rows(3000, 1000))
    spool.close(same)
    found = read(tmp_path / "workers" / "1.jsonl")
    assert found[0] == HEAD
    assert found[-1] == {"kind": "end", "dropped": 0}
    assert {"kind": "sample", "cpu_percent": None} in found
    assert [line["step"] for line in found if line["kind"] == "span"] == list(range(4000))
    assert [path.name for path in (tmp_path / "workers").iterdir()] == ["1.jsonl"]
    assert not spool._thread.is_alive()


def test_a_disk_that_does_not_answer_costs_lines_and_not_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, write_all = threading.Event(), module._write_all

    def stuck(file: Any, data: Any) -> None:
        assert answer.wait(20)
        write_all(file, data)

    monkeypatch.setattr(module, "_write_all", stuck)
    spool = Spool(tmp_path / "1.jsonl", HEAD, 0.0)
    spool.put(rows(0, 2))
    wait_until(lambda: spool._queue.empty())  # the thread stands still with it
    for index in range(MOST_QUEUED + 10):
        spool.put(rows(2 + 2 * index, 2))
    spool.write({"kind": "sample"})
    assert spool._queue.qsize() == MOST_QUEUED
    assert spool.dropped == 2 * 10 + 1
    answer.set()
    spool.close(same)
    found = read(tmp_path / "1.jsonl")
    assert found[-1] == {"kind": "end", "dropped": 21}
    assert [line["step"] for line in found if line["kind"] == "span"] == list(range(2 + 2 * MOST_QUEUED))


def test_a_full_disk_is_said_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, data: Any) -> None:  # noqa: ARG001
        raise OSError(28, "No space left on device")

    spool = Spool(tmp_path / "1.jsonl", HEAD, 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_write_all", full)
        spool.put(rows(0, 2))
        wait_until(lambda: spool.error)
    spool.put(rows(2, 5))
    spool.write({"kind": "sample"})
    spool.close(same)
    assert spool.error == "1.jsonl is not complete: No space left on device"
    assert read(tmp_path / "1.jsonl")[-1] == {"kind": "end", "dropped": 8}


def test_what_comes_after_the_end_is_counted_and_not_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "1.jsonl", HEAD, 0.0)
    spool.close(same)
    spool.write({"kind": "sample"})
    spool.close(same)
    assert spool.dropped == 1
    assert read(tmp_path / "1.jsonl") == [HEAD, {"kind": "end", "dropped": 0}]


@pytest.mark.parametrize("torn_bytes", [0, 3, 8, 24])
def test_a_worker_that_was_killed_leaves_lines(tmp_path: Path, torn_bytes: int) -> None:
    spool = Spool(tmp_path / "1.jsonl", HEAD, -9.5)
    spool.put(rows(0, 10))
    wait_until(lambda: (tmp_path / f"1{SUFFIX}").stat().st_size == 8 + 8 * 50)
    with (tmp_path / f"1{SUFFIX}").open("ab") as file:
        file.write(rows(10, 1).tobytes()[:torn_bytes])
    fcntl.flock(spool._numbers, fcntl.LOCK_UN)  # as the kernel does when a process ends
    recover(tmp_path)
    found = read(tmp_path / "1.jsonl")
    assert found[0] == HEAD
    assert [line["step"] for line in found[1:-1]] == list(range(10))
    assert {(line["begin_s"], line["end_s"]) for line in found[1:-1]} == {(0.5, 1.5)}
    assert found[-1] == {"kind": "end", "dropped": 0, "complete": False}
    assert not (tmp_path / f"1{SUFFIX}").exists()
    spool._queue.put(None)
    spool._thread.join(10)
    spool._numbers.close()
    spool._lines.close()


@pytest.mark.parametrize(
    "damaged",
    [
        [float("nan")],
        [float("inf")],
        [-1.0],
        [4.0],
        [0.5],
        [1e300],
        [SPAN, float("nan"), 0, 0.0, 1.0],
        [SPAN, 3, 99, 0.0, 1.0],
        [SPAN, 3, -1, 0.0, 1.0],
        [SPAN, 3, 0, float("inf"), 1.0],
        [SPAN, 1e300, 0, 0.0, 1.0],
        [module.OP, 0, 1, 99, 8, 0, 0, 0, 0.0, 1.0],
        [module.OP, 0, 1, 0, 8, 0, 0, 2, 0.0, 1.0],
        [module.BLOCKED, 0, 1, 0.5, 0, 0, 1, 0.0, 1.0],
    ],
)
def test_rows_before_a_damaged_one_are_recovered(tmp_path: Path, damaged: list[float]) -> None:
    spool = tmp_path / f"1{SUFFIX}"
    spool.write_bytes(array("d", [0.0, *rows(0, 3), *damaged]).tobytes() + rows(3, 5000).tobytes())
    recover(tmp_path)
    found = read(tmp_path / "1.jsonl")
    assert [line["step"] for line in found[:-1]] == [0, 1, 2]
    assert found[-1] == {"kind": "end", "dropped": 0, "complete": False}
    assert not spool.exists()


def test_a_loss_that_is_not_finite_is_no_damage(tmp_path: Path) -> None:
    row = [module.STEP, 0, 1.0, 0.5, 0.1, float("nan"), 3, 4, 4, 1000]
    (tmp_path / f"1{SUFFIX}").write_bytes(array("d", [0.0, *row, *rows(1, 1)]).tobytes())
    recover(tmp_path)
    assert [(line["kind"], line.get("loss")) for line in read(tmp_path / "1.jsonl")] == [
        ("step", None),
        ("span", None),
        ("end", None),
    ]


def test_nothing_is_left_of_workers_that_wrote_nothing(tmp_path: Path) -> None:
    recover(tmp_path / "workers")
    assert not (tmp_path / "workers").exists()
    (tmp_path / f"0{SUFFIX}").touch()
    recover(tmp_path)
    assert read(tmp_path / "0.jsonl") == [{"kind": "end", "dropped": 0, "complete": False}]
