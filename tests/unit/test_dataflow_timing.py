"""Schedules and lengths against PEs that are followed through every cycle; no formula of the package is used."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from dataflow_reference import arrays, convolutions, timings
from paceline.dataflow.matrices import Operands
from paceline.dataflow.shape import Shape
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import MODELS, Timing, make_schedule
from properties import examples

Starts = list[list[int]]  # by output


class Pipeline:
    """A multiplier, an adder, room for one product between them; cycle by cycle.

    A multiplication begins as soon as the multiplier is free, if there will be room for its product at its end. The
    first product of an output starts the accumulator and needs no adder.
    """

    def __init__(self, outputs: int, taps: int, timing: Timing) -> None:
        self.timing = timing
        self.multiplies: Starts = [[] for _ in range(outputs)]
        self.adds: Starts = [[] for _ in range(outputs)]
        self.ready = [0] * outputs  # when the partial sum of each output is complete
        self.is_adding: list[bool] = []  # in each cycle
        self.to_make = deque(itertools.product(range(outputs), range(taps)))
        self.making: tuple[int, int] | None = None  # output and number of a product
        self.waiting: tuple[int, int] | None = None
        self.multiplier_left = self.adder_left = 0  # cycles until they are free
        while self.to_make or self.making or self.waiting or self.adder_left:
            self.do_cycle(len(self.is_adding))

    def do_cycle(self, cycle: int) -> None:
        self.take(cycle)
        if self.making and not self.multiplier_left:
            assert self.waiting is None
            self.waiting, self.making = self.making, None
            self.take(cycle)
        has_room = self.waiting is None or self.adder_left <= self.timing.multiply_cycles
        if self.to_make and self.making is None and has_room:
            self.making, self.multiplier_left = self.to_make.popleft(), self.timing.multiply_cycles
            self.multiplies[self.making[0]].append(cycle)
        self.is_adding.append(self.adder_left > 0)
        self.multiplier_left, self.adder_left = max(self.multiplier_left - 1, 0), max(self.adder_left - 1, 0)

    def take(self, cycle: int) -> None:
        """The product that waits leaves if it can."""
        if self.waiting is None or (self.waiting[1] > 0 and self.adder_left):
            return
        output, number = self.waiting
        self.waiting, self.ready[output] = None, cycle
        if number > 0:
            self.adds[output].append(cycle)
            self.adder_left = self.timing.add_cycles
            self.ready[output] = cycle + self.timing.add_cycles


def pipelined(outputs: int, taps: int, sums: int, timing: Timing) -> tuple[Starts, Starts, Starts]:
    pe = Pipeline(outputs, taps, timing)
    return pe.multiplies, pe.adds, column_sums(pe.ready, pe.is_adding, sums, timing.add_cycles)


def column_sums(ready: list[int], is_adding: list[bool], sums: int, length: int) -> Starts:
    """In order, each as soon as its output is ready and the adder has nothing of its own to do for so long."""
    found: Starts = []
    cycle = 0
    for since in ready:
        found.append([])
        for _ in range(sums):
            while cycle < since or any(is_adding[cycle : cycle + length]):
                cycle += 1
            found[-1].append(cycle)
            cycle += length
    return found


def one_at_a_time(outputs: int, taps: int, sums: int, timing: Timing) -> tuple[Starts, Starts, Starts]:
    """A PE multiplies and adds in turn, then adds up its column; a fused addition takes no time."""
    multiplies: Starts = [[] for _ in range(outputs)]
    adds: Starts = [[] for _ in range(outputs)]
    column: Starts = [[] for _ in range(outputs)]
    is_fused = timing.model == "mac"
    clock = 0
    for output, tap in itertools.product(range(outputs), range(taps)):
        multiplies[output].append(clock)
        clock += timing.multiply_cycles
        if tap:
            adds[output].append(clock)
            clock += 0 if is_fused else timing.add_cycles
        if is_fused and tap == taps - 1:
            column[output] = [clock] * sums
    for output, _ in itertools.product(range(outputs), [] if is_fused else range(sums)):
        column[output].append(clock)
        clock += timing.add_cycles
    return multiplies, adds, column


def followed(outputs: int, taps: int, sums: int, timing: Timing) -> tuple[tuple[Starts, Starts, Starts], int]:
    """When everything in a pass starts, and when the last of it has ended."""
    follow = pipelined if timing.model == "pipelined" else one_at_a_time
    starts = follow(outputs, taps, sums, timing)
    addition = 0 if timing.model == "mac" else timing.add_cycles
    lengths = (timing.multiply_cycles, addition, addition)
    ends = [
        start + length
        for some, length in zip(starts, lengths, strict=True)
        for start in itertools.chain.from_iterable(some)
    ]
    return starts, max(ends)


@pytest.mark.parametrize("model", MODELS)
def test_every_start_is_that_of_a_pe_followed_cycle_by_cycle(model: str) -> None:
    """Up to 5 outputs, 5 products and 4 sums each, operations of 1 to 4 cycles: all of them."""
    sizes = itertools.product(range(1, 6), range(1, 6), range(5), range(1, 5), range(1, 5))
    for outputs, taps, sums, multiply, add in sizes:
        timing = Timing(model=model, multiply_cycles=multiply, add_cycles=add)
        schedule = make_schedule(timing, num_outputs=outputs, num_taps=taps, num_sums=sums)
        found = tuple(starts.tolist() for starts in (schedule.multiply_start, schedule.add_start, schedule.sum_start))
        expected, end = followed(outputs, taps, sums, timing)
        assert found == expected, (timing, outputs, taps, sums)
        assert schedule.cycles == end, (timing, outputs, taps, sums)


def side_by_side(array: tuple[int, int], height: int, width: int) -> int:
    """How many blocks of PEs the array has room for, laid down one after another wherever there is a place."""
    taken: set[tuple[int, int]] = set()
    count = 0
    for top, left in itertools.product(range(array[0] - height + 1), range(array[1] - width + 1)):
        block = set(itertools.product(range(top, top + height), range(left, left + width)))
        if not block & taken:
            taken |= block
            count += 1
    return count


def whole_length(shape: Shape, timing: Timing, array: tuple[int, int]) -> int:
    """Pass after pass: strips of output rows side by side, kernel rows folded, one more sum in each later fold."""
    outputs, products = shape.output_width, shape.num_channels * shape.kernel_width
    sets = list(itertools.product(range(shape.num_images), range(shape.num_filters)))
    if timing.model == "serial":
        per_row = followed(outputs, shape.kernel_height * products, 0, timing)[1]
        return sum(per_row for _ in sets for _ in range(shape.output_height))
    height, width = min(shape.kernel_height, array[0]), min(shape.output_height, array[1])
    strips = [(one, first) for one in sets for first in range(0, shape.output_height, width)]
    at_once = side_by_side(array, height, width)
    folds, rows_left = [], shape.kernel_height
    while rows_left:
        rows = min(rows_left, height)
        sums = rows - 1 if rows_left == shape.kernel_height else rows
        folds.append(followed(outputs, products, sums, timing)[1])
        rows_left -= rows
    clock = 0
    while strips:
        del strips[:at_once]
        clock += sum(folds)
    return clock


@examples(300)
@given(convolutions(), arrays(), timings())
def test_a_whole_convolution_is_as_long_as_its_passes(
    case: tuple[Any, Any, Operands], array: tuple[int, int] | None, timing: Timing
) -> None:
    operands = case[2]
    shape = operands.shape
    whole = array or (shape.kernel_height, shape.output_height)
    for model in MODELS:
        one = replace(timing, model=model)
        assert Simulation.of(operands, one, array).cycles == whole_length(shape, one, whole), model
