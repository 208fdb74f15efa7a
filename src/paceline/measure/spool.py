"""Write a worker's records to `RANK.jsonl` in a background thread, without delaying training.

During training, rows of numbers go to a binary spool file beside `RANK.jsonl`. When the run ends, the rows are
converted to JSON lines. Packing a row takes 0.2 to 0.3 us, but formatting a JSON line takes 1.1 to 2.0 us and would
slow down training even in another thread. If a worker is killed, its spool file remains, and `recover` converts it.
"""

from __future__ import annotations

import json
import math
import queue
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.durable_files import durable_file
from paceline.measure.observer import PHASES
from paceline.results import Json
from paceline.worker_files import worker_lines

MOST_QUEUED = 64  # limit of chunks and lines in the queue
CHUNK_NUMBERS = 8192  # numbers per chunk
SUFFIX = ".spool"
CLOSE_S = 30.0  # longest wait for the disk

OPS = ("send", "recv", "all_reduce", "reduce_scatter", "broadcast", "gather", "scatter", "all_gather", "barrier")
MEDIA = ("network", "memory")
OP_CODES = {op: code for code, op in enumerate(OPS)}
MEDIUM_CODES = {medium: code for code, medium in enumerate(MEDIA)}
PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}
NO_PEER = -1

STEP, SPAN, OP, BLOCKED = range(4)  # the first number of a row is its type
# Fields of each type of row. WIDTHS has the number of fields of each type.
# STEP, step, begin, iteration_s, data_s, loss, num_right, num_answers, num_samples, sent_bytes
# SPAN, step, phase, begin, end
# OP, step, number, op, bytes, peer, tag, medium, begin, end
# BLOCKED, step, number, op, peer, tag, is_busy, begin, end
WIDTHS = (10, 5, 10, 9)


def count_rows(numbers: Sequence[float]) -> int:
    return sum(1 for _ in _rows(numbers))


def whole_rows(numbers: Sequence[float]) -> int:
    """Return how many of the `numbers` belong to complete rows; the last row may be incomplete."""
    return next((begin for begin, end in _rows(numbers) if end > len(numbers)), len(numbers))


def lines(numbers: Sequence[float], run_time: Callable[[float], float]) -> Iterator[str]:
    """Yield each row as a JSON line; `run_time` converts perf_counter to time since the run's start."""
    for begin, end in _rows(numbers):
        yield _FORMATS[int(numbers[begin])](numbers[begin + 1 : end], run_time)


def _rows(numbers: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield each row's begin and end index; an incomplete last row ends beyond `numbers`."""
    begin = 0
    while begin < len(numbers):
        end = begin + WIDTHS[int(numbers[begin])]
        yield begin, end
        begin = end


def _step_line(row: Sequence[float], run_time: Callable[[float], float]) -> str:
    step, begin, iteration_s, data_s, loss, num_right, num_answers, num_samples, sent_bytes = row
    return (
        f'{{"kind":"step","step":{int(step)},"begin_s":{run_time(begin):.7f},"iteration_s":{iteration_s!r},'
        f'"data_s":{data_s!r},"loss":{loss!r},"num_right":{int(num_right)},"num_answers":{int(num_answers)},'
        f'"num_samples":{int(num_samples)},"sent_bytes":{int(sent_bytes)}}}\n'
        if math.isfinite(loss)
        else _step_line([*row[:4], 0.0, *row[5:]], run_time).replace('"loss":0.0', '"loss":null')
    )


def _span_line(row: Sequence[float], run_time: Callable[[float], float]) -> str:
    step, phase, begin, end = row
    return (
        f'{{"kind":"span","step":{int(step)},"phase":"{PHASES[int(phase)]}",'
        f'"begin_s":{run_time(begin):.7f},"end_s":{run_time(end):.7f}}}\n'
    )


def _op_line(row: Sequence[float], run_time: Callable[[float], float]) -> str:
    step, number, op, num_bytes, peer, tag, medium, begin, end = row
    return (
        f'{{"kind":"op","step":{int(step)},"number":{int(number)},"op":"{OPS[int(op)]}","bytes":{int(num_bytes)},'
        f'"peer":{_peer(peer)},"tag":{int(tag)},"medium":"{MEDIA[int(medium)]}",'
        f'"begin_s":{run_time(begin):.7f},"end_s":{run_time(end):.7f}}}\n'
    )


def _blocked_line(row: Sequence[float], run_time: Callable[[float], float]) -> str:
    step, number, op, peer, tag, is_busy, begin, end = row
    return (
        f'{{"kind":"blocked","step":{int(step)},"number":{int(number)},"op":"{OPS[int(op)]}",'
        f'"peer":{_peer(peer)},"tag":{int(tag)},"busy":{"true" if is_busy else "false"},'
        f'"begin_s":{run_time(begin):.7f},"end_s":{run_time(end):.7f}}}\n'
    )


def _peer(peer: float) -> str:
    return "null" if peer == NO_PEER else str(int(peer))


_FORMATS = (_step_line, _span_line, _op_line, _blocked_line)


class Spool:
    """Queue of rows and JSON lines for one worker's file, with a thread that writes them.

    Adding to the queue never blocks. If the queue is full or writing has failed, new items are dropped and counted.
    """

    def __init__(self, path: Path, head: Json | None, shift_s: float) -> None:
        """Create the worker's file at `path`, with `head` as first line, and the spool file.

        If `head` is None, new lines are appended to the file at `path`.

        `shift_s` plus a time of this worker's `perf_counter` is the time since the run's start. `shift_s` is stored
        for `recover`, which needs it if the worker is killed.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.error = ""
        self.dropped = 0
        self._numbers = path.with_suffix(SUFFIX).open("wb", buffering=0)
        self._lines = path.open("ab" if head is None else "wb", buffering=0)
        if head is not None:
            self._lines.write(_line(head))
        self._numbers.write(array("d", [shift_s]))
        self._queue: queue.SimpleQueue[array[float] | bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._write, daemon=True, name="paceline-spool")
        self._thread.start()

    def put(self, numbers: array[float]) -> None:
        """Queue rows of numbers. The caller must not change the array afterwards."""
        if not self._offer(numbers):
            self._drop(count_rows(numbers))

    def write(self, row: Json) -> None:
        """Queue one JSON line. Thread-safe."""
        if not self._offer(_line(row)):
            self._drop(1)

    def close(self, run_time: Callable[[float], float]) -> None:
        """Write the queued items, append the spool file's rows to the worker's file, and close the worker's file.

        If that fails, or if the disk does not respond within CLOSE_S, `error` is set to the reason.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.put(None)
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
        if self._is_closed or self.error or self._queue.qsize() >= MOST_QUEUED:
            return False
        self._queue.put(item)
        return True

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped += count

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
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
    """Append the rows of each spool file in `folder` to the worker's file as JSON lines, and delete the spool file.

    A spool file remains in `folder` if its worker was killed.
    """
    for spool in sorted(folder.glob(f"*{SUFFIX}")):
        with spool.open("rb") as file:
            start = array("d", file.read(8).ljust(8, b"\0"))
        shift_s = start[0]
        with spool.with_suffix(".jsonl").open("ab", buffering=0) as target:
            _convert(spool, target, lambda moment, shift_s=shift_s: moment + shift_s)  # type: ignore[misc]
            target.write(_line({"kind": "end", "dropped": 0, "complete": False}))
        spool.unlink()


def keep_earlier_lines(file: Path, num_steps: int, run_s: float) -> bool:
    """Drop what a worker recorded after `num_steps` steps, when the run had lasted `run_s` seconds.

    The rest is continued by the resumed run. Returns False if there is no file.
    """
    if not file.is_file():
        return False
    with durable_file(file) as target:
        for line in worker_lines(file):
            is_earlier = line["step"] < num_steps if "step" in line else line.get("time_s", 0.0) <= run_s
            if is_earlier and line["kind"] != "end":
                target.write(_line(line))
    return True


def _convert(spool: Path, target: Any, run_time: Callable[[float], float]) -> None:
    """Append the complete rows of a spool file to the file `target`, as JSON lines."""
    rest: array[float] = array("d")
    with spool.open("rb") as file:
        file.read(8)  # skip `shift_s`
        while piece := file.read(8 * CHUNK_NUMBERS):
            rest.frombytes(piece[: len(piece) // 8 * 8])
            end = whole_rows(rest)
            _write_all(target, "".join(lines(rest[:end], run_time)).encode())
            rest = rest[end:]


def _write_all(file: Any, data: Any) -> None:
    """Write all data; one call of `write` on an unbuffered file may write only a part."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _line(row: Json) -> bytes:
    return json.dumps(_finite(row), separators=(",", ":")).encode() + b"\n"


def _finite(row: Json) -> Json:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
