"""Lines of workers, read step by step."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator

from made_up_lines import Line, both, even_steps, op, span, step_line
from paceline.measure.steps import group_by_step, num_steps_represented, read_steps


def one_step(step: int) -> list[Line]:
    phase, collective = span(step, "forward", step, step + 0.5), both(step, step, step + 0.5, step + 1)
    return [phase, *collective, step_line(step, step, step + 1)]


def test_everything_of_a_step_comes_group_by_step() -> None:
    steps = list(read_steps([{"kind": "head", "rank": 0}, *one_step(0), *one_step(1), {"kind": "end", "dropped": 0}]))
    assert [lines.step for lines in steps] == [0, 1]
    assert (steps[1].begin_s, steps[1].end_s) == (1, 2)
    assert [len(steps[1].spans), len(steps[1].ops), len(steps[1].blocked)] == [1, 1, 1]
    assert steps[1].ops[0].key == steps[1].blocked[0].key


def test_what_completes_late_is_put_with_its_step() -> None:
    steps = list(read_steps([*one_step(0), *one_step(1), op(0, 9, 0.9, 1.9), *one_step(2)]))
    assert [len(lines.ops) for lines in steps] == [2, 1, 1]


def test_steps_without_spans_or_without_an_end_are_passed_over() -> None:
    assert not list(read_steps([step_line(0, 0, 1), span(1, "forward", 1, 2), {"kind": "sample", "time_s": 1.0}]))


def test_files_from_before_spans_are_passed_over() -> None:
    assert not list(read_steps([{"step": 0, "iteration_s": 1.0, "data_s": 0.1}]))


def test_workers_go_step_by_step_whoever_measured_it() -> None:
    first = read_steps([*one_step(0), *one_step(1), *one_step(2)])
    second = read_steps([*one_step(0), *one_step(2)])
    groups = [(sorted(group), next(iter(group.values())).step) for group in group_by_step({0: first, 1: second})]
    assert groups == [([0, 1], 0), ([0], 1), ([0, 1], 2)]


def test_memory_does_not_grow_with_steps() -> None:
    def peak(count: int) -> int:
        def lines() -> Iterator[Line]:
            yield from even_steps(count, {"forward": 1.0, "backward": 2.0})

        tracemalloc.start()
        for _ in group_by_step({0: read_steps(lines()), 1: read_steps(lines())}):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(5000) < 3 * peak(50)


def test_how_many_steps_a_kept_one_num_steps_represented() -> None:
    assert [num_steps_represented(step) for step in (0, 999, 1000, 1998, 2000, 4000)] == [1, 1, 2, 2, 4, 8]
    for step in range(1000, 70_000, 7):
        assert num_steps_represented(step) == 2 ** (math.floor(math.log2(step / 1000)) + 1)
