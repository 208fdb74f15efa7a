"""Format of measured spans: rows of doubles during training, JSON lines afterwards.

Packing a row takes 0.2 to 0.3 us and formatting a JSON line 1.1 to 2.0 us, which would slow training even in another
thread. Rows are converted to lines after the last step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence

from paceline.measure.observer import PHASES

FULL_STEPS = 1000  # below this step, the spans of every step are kept

OPS = (
    "send",
    "recv",
    "all_reduce",
    "reduce_scatter",
    "broadcast",
    "gather",
    "scatter",
    "all_gather",
    "barrier",
)
MEDIA = ("network", "memory")
OP_CODES = {op: code for code, op in enumerate(OPS)}
MEDIUM_CODES = {medium: code for code, medium in enumerate(MEDIA)}
PHASE_CODES = {phase: code for code, phase in enumerate(PHASES)}
NO_PEER = -1

STEP, SPAN, OP, BLOCKED = range(4)  # the first number of a row
# Lengths of these rows:
# STEP, step, begin, iteration_s, data_s, loss, num_right, num_answers, num_samples, sent_bytes
# SPAN, step, phase, begin, end
# OP, step, number, op, bytes, peer, tag, medium, begin, end
# BLOCKED, step, number, op, peer, tag, is_busy, begin, end
WIDTHS = (10, 5, 10, 9)


def is_kept(step: int) -> bool:
    """Whether the spans of a step are kept: all below 1,000, then the same number per octave.

    Depends on the step alone, so that every worker keeps the same steps.
    """
    return step % (1 << (step // FULL_STEPS).bit_length()) == 0


def count_rows(numbers: Sequence[float]) -> int:
    place = count = 0
    while place < len(numbers):
        place += WIDTHS[int(numbers[place])]
        count += 1
    return count


def whole_rows(numbers: Sequence[float]) -> int:
    """Return the length of the complete rows at the start of `numbers`."""
    place = 0
    while place < len(numbers) and place + WIDTHS[int(numbers[place])] <= len(numbers):
        place += WIDTHS[int(numbers[place])]
    return place


def lines(numbers: Sequence[float], run_time: Callable[[float], float]) -> Iterator[str]:
    """Yield rows as JSON lines; `run_time` converts perf_counter to seconds since the run's start."""
    place = 0
    while place < len(numbers):
        kind = int(numbers[place])
        yield _FORMATS[kind](numbers[place + 1 : place + WIDTHS[kind]], run_time)
        place += WIDTHS[kind]


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
    return "null" if peer == NO_PEER else json.dumps(int(peer))


_FORMATS = (_step_line, _span_line, _op_line, _blocked_line)
