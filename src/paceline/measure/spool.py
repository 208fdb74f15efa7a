"""Write a worker's records to `RANK.jsonl` in a background thread, without delaying training.

During training, rows of numbers go to a binary spool file beside `RANK.jsonl`. When the run ends, the rows are
converted to JSON lines. Packing a row takes 0.2 to 0.3 us, but formatting a JSON line takes 1.1 to 2.0 us and would
slow down training even in another thread. If a worker is killed, its spool file remains, and `recover` converts it.
"""

from __future__ import annotations

import fcntl
import json
import math
import operator
import os
import queue
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from paceline.durable_files import durable_file
from paceline.limits import DISK_S
from paceline.measure.observer import PHASES
from paceline.results import Json
from paceline.worker_files import worker_lines

MOST_QUEUED = 64  # limit of chunks and lines in the queue
CHUNK_NUMBERS = 8192  # numbers per chunk
SUFFIX = ".spool"

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
# Number of values of each field that holds a code, by place in the row, for each type of row.
_CODES: tuple[dict[int, int], ...] = ({}, {2: len(PHASES)}, {3: len(OPS), 7: len(MEDIA)}, {3: len(OPS)})
LOSS = 5  # place of the loss in a STEP row; it may be any number
MOST = 1e18  # every other number is below this


def count_rows(numbers: Sequence[float]) -> int:
    return sum(1 for _ in _rows(numbers))


def whole_rows(numbers: Sequence[float]) -> int:
    """Return how many of the `numbers` belong to complete rows; the last row may be incomplete."""
    return next((begin for begin, end in _rows(numbers) if end > len(numbers)), len(numbers))


def intact_rows(numbers: Sequence[float]) -> int:
    """Return how many of the `numbers` belong to complete rows before the first damaged one."""
    begin = 0
    while begin < len(numbers) and numbers[begin] in range(len(WIDTHS)):
        row = numbers[begin : begin + WIDTHS[int(numbers[begin])]]
        if len(row) < WIDTHS[int(row[0])] or not _is_intact(row):
            break
        begin += len(row)
    return begin


def _is_intact(row: Sequence[float]) -> bool:
    codes = _CODES[int(row[0])]
    return all(
        number in range(codes[place]) if place in codes else abs(number) < MOST or (place == LOSS and row[0] == STEP)
        for place, number in enumerate(row)
    )


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
# Beginnings of the lines that `Spool.close` and `recover` write at the end of a worker's file.
_CONVERTED = tuple(f'{{"kind":"{kind}"'.encode() for kind in ("step", "span", "op", "blocked", "end"))
CONTINUED_LINE = b'{"kind":"continued"}\n'  # in a resumed run: the records of the earlier part end here


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
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._numbers, fcntl.LOCK_EX | fcntl.LOCK_NB)  # `recover` waits for the end of this process
        self._lines = path.open("ab" if head is None else "wb", buffering=0)
        self._lines.write(CONTINUED_LINE if head is None else _line(head))
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

        If that fails, or if the disk does not respond within DISK_S, `error` is set to the reason.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(DISK_S)
        if self._thread.is_alive():
            self.error = f"{self.path.name} is not complete: the disk did not respond within {DISK_S:g} s"
            return
        spool = self.path.with_suffix(SUFFIX)
        try:
            _convert(spool, self._lines, run_time)
            self._lines.write(_line({"kind": "end", "dropped": self.dropped}))
            os.fsync(self._lines.fileno())
            spool.unlink()
        except OSError as error:
            self._fail(error)
        finally:
            self._lines.close()
            self._numbers.close()

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
    """Add the rows of each spool file in `folder` to the worker's file as JSON lines, and delete the spool file.

    A spool file remains in `folder` if its worker was killed. Those of workers that still run are left alone. Rows
    after a damaged one are lost; the last line says in any case that the file is not complete.
    """
    for spool in sorted(folder.glob(f"*{SUFFIX}")):
        with spool.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            (shift_s,) = array("d", file.read(8).ljust(8, b"\0"))
            target = spool.with_suffix(".jsonl")
            with durable_file(target) as recovered:
                recovered.writelines(_lines_not_from_spool(target))
                _convert(spool, recovered, partial(operator.add, shift_s), intact_rows)
                recovered.write(_line({"kind": "end", "dropped": 0, "complete": False}))
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


def _lines_not_from_spool(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a worker's file, without those that a worker converted before it was killed.

    Lines from before a run was resumed are all kept, because their spool file is gone.
    """
    if not file.exists():
        return
    with file.open("rb") as lines:
        num_earlier = max((number for number, line in enumerate(lines, start=1) if line == CONTINUED_LINE), default=0)
        lines.seek(0)
        for number, line in enumerate(lines, start=1):
            is_kept = number <= num_earlier or not line.startswith(_CONVERTED)
            if is_kept and line.endswith(b"\n"):
                yield line


def _convert(
    spool: Path, target: Any, run_time: Callable[[float], float], length: Callable[[Sequence[float]], int] = whole_rows
) -> None:
    """Append the complete rows of a spool file to the file `target`, as JSON lines.

    `length` returns how many numbers belong to rows that can be converted.
    """
    rest: array[float] = array("d")
    with spool.open("rb") as file:
        file.read(8)  # skip `shift_s`
        while piece := file.read(8 * CHUNK_NUMBERS):
            rest.frombytes(piece[: len(piece) // 8 * 8])
            end = length(rest)
            _write_all(target, "".join(lines(rest[:end], run_time)).encode())
            rest = rest[end:]
            if len(rest) >= max(WIDTHS):
                return  # it begins with a damaged row


def _write_all(file: Any, data: Any) -> None:
    """Write all data; one call of `write` on an unbuffered file may write only a part."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[file.write(rest) :]


def _line(row: Json) -> bytes:
    return json.dumps(_finite(row), separators=(",", ":")).encode() + b"\n"


def _finite(row: Json) -> Json:
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}
