"""Writer of a worker's file: a background thread, so that a slow disk does not delay training.

During training, rows of numbers go to a spool file beside `RANK.jsonl`; they are converted to lines when the run ends.
A killed worker leaves its spool file, which `recover` converts.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.measure.observer import Row
from paceline.measure.spans import count_rows, lines, whole_rows

MOST_WAITING = 64  # queued chunks and lines
CHUNK_NUMBERS = 8192  # numbers per chunk
SUFFIX = ".spool"
CLOSE_S = 30.0  # longest wait for the disk


class Spool:
    """Queue of one worker's rows and lines. Never blocks; counts what it drops when the queue is full."""

    def __init__(self, path: Path, head: Row, shift_s: float) -> None:
        """`shift_s` converts the worker's clock to the run's; `recover` uses it if the worker is killed."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.error = ""
        self.dropped = 0
        self._numbers = path.with_suffix(SUFFIX).open("wb", buffering=0)
        self._lines = path.open("wb", buffering=0)
        self._lines.write(_line(head))
        self._numbers.write(array("d", [shift_s]))
        self._waiting: queue.SimpleQueue[array[float] | bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, daemon=True, name="paceline-spool")
        self._thread.start()

    def put(self, numbers: array[float]) -> None:
        """Queue rows of numbers; the caller must not change them afterwards."""
        if not self._offer(numbers):
            self._drop(count_rows(numbers))

    def write(self, row: Row) -> None:
        """Queue one line. Thread-safe."""
        if not self._offer(_line(row)):
            self._drop(1)

    def close(self, run_time: Callable[[float], float]) -> None:
        """Write the queue, convert the rows to lines, and close the file."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self.error = f"{self.path.name} is not complete: the disk did not respond within {CLOSE_S:g} s"
            return
        self._numbers.close()
        spool = self.path.with_suffix(SUFFIX)
        try:
            _convert(spool, self._lines, run_time)
            self._lines.write(_line({"kind": "end", "dropped": self.dropped}))
            spool.unlink()
        except OSError as error:
            self._fail(error)
        finally:
            self._lines.close()

    def _offer(self, item: array[float] | bytes) -> bool:
        if self._is_closed or self.error or self._waiting.qsize() >= MOST_WAITING:
            return False
        self._waiting.put(item)
        return True

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self.error:
                try:
                    _write_all(self._lines if isinstance(item, bytes) else self._numbers, item)
                    continue
                except OSError as error:
                    self._fail(error)
            self._drop(1 if isinstance(item, bytes) else count_rows(item))

    def _fail(self, error: OSError) -> None:
        self.error = f"{self.path.name} is not complete: {error.strerror or error}"


def recover(folder: Path) -> None:
    """Convert the spool files that killed workers left in a folder."""
    for spool in sorted(folder.glob(f"*{SUFFIX}")):
        with spool.open("rb") as file:
            start = array("d", file.read(8).ljust(8, b"\0"))
        shift_s = start[0]
        with spool.with_suffix(".jsonl").open("ab", buffering=0) as target:
            _convert(spool, target, lambda moment, shift_s=shift_s: moment + shift_s)  # type: ignore[misc]
            target.write(_line({"kind": "end", "dropped": 0, "complete": False}))
        spool.unlink()


def _convert(spool: Path, target: Any, run_time: Callable[[float], float]) -> None:
    """Append a spool's rows to a file as lines, in pieces; an incomplete last row is dropped."""
    rest: array[float] = array("d")
    with spool.open("rb") as file:
        file.read(8)  # the shift
        while piece := file.read(8 * CHUNK_NUMBERS):
            rest.frombytes(piece[: len(piece) // 8 * 8])
            end = whole_rows(rest)
            _write_all(target, "".join(lines(rest[:end], run_time)).encode())
            rest = rest[end:]


def _write_all(file: Any, data: Any) -> None:
    """Write all data: one call on an unbuffered file may write only a part."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _line(row: Row) -> bytes:
    return json.dumps(_finite(row), separators=(",", ":")).encode() + b"\n"


def _finite(row: Row) -> Row:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
