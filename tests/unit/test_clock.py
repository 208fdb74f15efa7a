"""Clocks that differ are brought together, within the error that is claimed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from helpers import on_threads
from paceline.errors import RunError
from paceline.measure import exchange as module
from paceline.measure.exchange import (
    PIECE_BYTES,
    Clock,
    Offset,
    broadcast_text,
    measure_drift,
    send_files_to_root,
    synchronise_clocks,
)
from paceline.train.context import Context

AHEAD_S = 1000.0  # of each worker before the last
mine = threading.local()


def skewed() -> float:
    return time.perf_counter() + getattr(mine, "ahead_s", 0.0)


def agree(context: Context) -> tuple[Clock, float, float, float]:
    mine.ahead_s = AHEAD_S * context.rank
    clock = measure_drift(synchronise_clocks(context.comm), context.comm)
    before = time.perf_counter()
    return clock, before, clock.run_time(skewed()), time.perf_counter()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_workers_with_other_clocks_agree_on_the_time(monkeypatch: pytest.MonkeyPatch, world_size: int) -> None:
    monkeypatch.setattr(module, "perf_counter", skewed)
    found = on_threads(world_size, agree)
    for rank, (clock, before, run_s, after) in enumerate(found):
        assert clock.first.error_s >= 0
        assert abs(clock.first.seconds + AHEAD_S * rank) <= clock.first.error_s + 1e-6
        assert clock.last is not None
        assert clock.origin == found[0][0].origin
        error_s = clock.first.error_s + clock.last.error_s + 1e-6
        assert before - error_s <= clock.origin + run_s <= after + error_s


def test_workers_of_one_host_have_one_clock() -> None:
    for clock in on_threads(3, lambda context: synchronise_clocks(context.comm)):
        assert clock.first.seconds == 0.0


def test_nothing_of_it_is_counted() -> None:
    def job(context: Context) -> int:
        broadcast_text(context.comm, "x")
        synchronise_clocks(context.comm)
        return sum(context.comm.counter.calls.values())

    assert on_threads(3, job) == [0, 0, 0]


def test_drift_is_spread_over_the_run_where_it_is_more_than_the_error() -> None:
    first, last = Offset(5.0, 0.001, at=100.0), Offset(5.5, 0.001, at=200.0)
    drifting = Clock(50.0, first, last)
    assert [drifting.offset_at(moment) for moment in (90, 100, 150, 200, 300)] == [5.0, 5.0, 5.25, 5.5, 5.5]
    assert drifting.run_time(150.0) == 150 + 5.25 - 50
    assert Clock(50.0, first, Offset(5.0015, 0.001, at=200.0)).offset_at(200.0) == 5.0
    assert Clock(50.0, first).offset_at(200.0) == 5.0


def carry(context: Context, folder: Path) -> str:
    text = broadcast_text(context.comm, f"from {context.rank} \N{GREEK SMALL LETTER ALPHA}" if folder else "")
    local = folder / f"local{context.rank}"
    if context.rank % 2:
        (local / "workers").mkdir(parents=True)
        (local / "trace").mkdir()
        (local / "workers" / f"{context.rank}.jsonl").write_bytes(bytes([context.rank]) * (PIECE_BYTES + 5))
        (local / "trace" / f"{context.rank}.gz").write_bytes(b"")
    send_files_to_root(context.comm, folder / "run", local if context.rank % 2 else None)
    return text


def test_files_travel_to_rank_0_in_pieces(tmp_path: Path) -> None:
    assert on_threads(4, carry, folder=tmp_path) == ["from 0 \N{GREEK SMALL LETTER ALPHA}"] * 4
    run = tmp_path / "run"
    assert sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()) == [
        *("trace/1.gz", "trace/3.gz", "workers/1.jsonl", "workers/3.jsonl"),
    ]
    for rank in (1, 3):
        assert (run / "workers" / f"{rank}.jsonl").read_bytes() == bytes([rank]) * (PIECE_BYTES + 5)


def test_an_empty_text_is_told_too() -> None:
    assert on_threads(2, lambda context: broadcast_text(context.comm, "")) == ["", ""]


class Sender:
    """A comm of rank 0 whose only peer sends the given bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, tensor: torch.Tensor, peer: int, tag: int = 0) -> None:
        del peer, tag
        piece, self._data = self._data[: len(tensor)], self._data[len(tensor) :]
        tensor.copy_(torch.frombuffer(bytearray(piece), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        (b"not JSON", "sent a malformed list of files"),
        (b'[["workers/1.jsonl"]]', "sent a malformed list of files"),
        (b'[["workers/1.jsonl", -5]]', "sent a malformed list of files"),
        (b'[[3, "many"]]', "sent a malformed list of files"),
        (b"[" * 5000, "sent a malformed list of files"),
        (b'[["../1.jsonl", 1]]', "outside the run's folder"),
        (b'[["recipe.toml", 1]]', "outside the run's folder"),
    ],
)
def test_hostile_lists_of_files_are_refused(tmp_path: Path, listing: bytes, reason: str) -> None:
    with pytest.raises(RunError, match=f"worker 1 .*{reason}"):
        module._receive_files(Sender(listing), 1, len(listing), tmp_path)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [-1, 1 << 40])
def test_lists_of_files_have_a_limit(tmp_path: Path, length: int) -> None:
    with pytest.raises(RunError, match=f"a list of files of {length} bytes"):
        module._receive_files(Sender(b""), 1, length, tmp_path)  # type: ignore[arg-type]
