"""What is kept of a run's steps, and numbers that become lines without loss."""

from __future__ import annotations

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.measure.spool import (
    BLOCKED,
    NO_PEER,
    OP,
    OP_CODES,
    SPAN,
    STEP,
    WIDTHS,
    count_rows,
    lines,
    whole_rows,
)
from paceline.measure.steps import records_spans

NUMBERS = [
    *(SPAN, 7, 1, 101.5, 101.75),
    *(OP, 7, 3, OP_CODES["all_reduce"], 4000, NO_PEER, 0, 0, 102.0, 102.5),
    *(OP, 7, 0, OP_CODES["send"], 1 << 40, 2, 31745, 1, 102.0, 102.5),
    *(BLOCKED, 7, 3, OP_CODES["all_reduce"], NO_PEER, 0, True, 102.25, 102.5),
    *(STEP, 7, 101.0, 1.75, 0.125, 2.3, 3, 8, 8, 123),
]


def run_time(moment: float) -> float:
    return moment - 100


@given(st.integers(min_value=0, max_value=10**9))
def test_the_rule_is_the_one_that_is_documented(step: int) -> None:
    if step < 1000:
        assert records_spans(step)
    else:
        power = 2 ** (math.floor(math.log2(step / 1000)) + 1)
        assert records_spans(step) == (step % power == 0)


def test_a_long_run_keeps_few() -> None:
    assert sum(map(records_spans, range(1000))) == 1000
    assert [sum(map(records_spans, range(1000 << k, 2000 << k))) for k in range(6)] == [500] * 6


def test_numbers_become_lines() -> None:
    span, reduce, send, blocked, step = (json.loads(line) for line in lines(array("d", NUMBERS), run_time))
    assert span == {"kind": "span", "step": 7, "phase": "forward", "begin_s": 1.5, "end_s": 1.75}
    assert reduce == {
        "kind": "op",
        "step": 7,
        "number": 3,
        "op": "all_reduce",
        "bytes": 4000,
        "peer": None,
        "tag": 0,
        "medium": "network",
        "begin_s": 2.0,
        "end_s": 2.5,
    }
    assert (send["peer"], send["tag"], send["bytes"], send["medium"]) == (2, 31745, 1 << 40, "memory")
    assert blocked == {
        "kind": "blocked",
        "step": 7,
        "number": 3,
        "op": "all_reduce",
        "peer": None,
        "tag": 0,
        "busy": True,
        "begin_s": 2.25,
        "end_s": 2.5,
    }
    assert step == {
        "kind": "step",
        "step": 7,
        "begin_s": 1.0,
        "iteration_s": 1.75,
        "data_s": 0.125,
        "loss": 2.3,
        "num_right": 3,
        "num_answers": 8,
        "num_samples": 8,
        "sent_bytes": 123,
    }


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_null(loss: float) -> None:
    (line,) = lines([STEP, 7, 101.0, 0.0, 0.0, loss, 3, 8, 8, 123], run_time)
    found = json.loads(line, parse_constant=pytest.fail)
    assert found["loss"] is None
    assert (found["iteration_s"], found["num_right"], found["sent_bytes"]) == (0.0, 3, 123)


def test_rows_are_counted_and_a_torn_one_is_left_out() -> None:
    assert count_rows(NUMBERS) == 5
    assert whole_rows(NUMBERS) == len(NUMBERS)
    assert whole_rows(NUMBERS[:-1]) == len(NUMBERS) - WIDTHS[STEP]
    assert whole_rows([]) == 0
