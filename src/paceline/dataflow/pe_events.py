"""List every operation of every processing element (PE) in a simulated convolution.

A simulation consists of passes. A pass is the work of the PE array between two loads of filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from paceline.dataflow.placement import Strip
from paceline.dataflow.simulator import Record, Simulation

Place = tuple[int, int]  # row and column in the array
Number = int | float
OPERATIONS = ("multiply", "add", "send", "sum")  # in their order within a cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One operation of one PE (processing element), with its first and last cycle. Cycles are counted from 1.

    An addition that takes no time (execution model `mac`) gets the cycle in which the preceding multiplication ends.
    """

    cycle: int
    last_cycle: int
    number: int  # index of the pass
    place: Place
    operation: str  # one of OPERATIONS; `sum` adds a partial sum to the sum of a column
    left: Number | None  # a weight, or the sum so far
    right: Number | None  # an input, a product, or a partial sum that was received
    result: Number
    output: tuple[int, int, int, int]  # image, filter, row, column
    loads: tuple[str, ...] = ()  # data that the PE receives for this operation: weight, input
    source: Place | None = None  # sender of the partial sum; the PE itself for a sum kept from an earlier fold
    target: Place | None = None
    tap: int | None = None  # index of the multiplied weight among the PE's weights
    is_complete: bool = False  # the result is the output's final value


class _Where(TypedDict):
    """The fields of `Event` that are equal for all events of one PE for one output."""

    number: int
    place: Place
    output: tuple[int, int, int, int]


class _Cycles(TypedDict):
    cycle: int
    last_cycle: int


def events(simulation: Simulation) -> Iterator[Event]:
    """Yield all events in order of their cycles; within a cycle, an event follows those that it depends on."""
    for record in simulation.records():
        found = [event for index in range(len(record.one.strips)) for event in _strip_events(simulation, record, index)]
        yield from sorted(found, key=lambda event: (event.cycle, OPERATIONS.index(event.operation), event.place))


def count_events(simulation: Simulation) -> int:
    """Return the number of events: products, additions, and sends of partial sums to other PEs."""
    plan, shape = simulation.plan, simulation.plan.shape
    sends = 0 if plan.is_serial else shape.num_outputs * (shape.kernel_height - plan.num_folds)
    return shape.num_multiplications + shape.num_additions + sends


def _strip_events(simulation: Simulation, record: Record, index: int) -> Iterator[Event]:
    strip = record.one.strips[index]
    num_rows = record.pes.partial_sums.shape[1]
    for row in range(num_rows):
        for column in range(strip.num_columns):
            for output in range(simulation.plan.shape.output_width):
                yield from _row_events(simulation, record, index, (row, column, output))
    for column in range(strip.num_columns):
        for output in range(simulation.plan.shape.output_width):
            yield from _column_events(record, index, column, output)


def _row_events(simulation: Simulation, record: Record, index: int, where: tuple[int, int, int]) -> Iterator[Event]:
    """Yield the multiplications and additions of one PE for one output.

    `index` is the index of a strip in the pass. `where` has the row and the column of the PE in this strip, and the
    column of the output.
    """
    row, column, output = where
    pes, schedule = record.pes, record.schedule
    stride, width = simulation.plan.shape.stride[1], simulation.plan.shape.kernel_width
    at = (index, row, column, output)
    common = _common(record, index, row, column, output)
    is_alone = record.one.is_final and not schedule.sum_start.shape[1]
    for number, (lane, tap) in enumerate(pes.taps):
        is_last = number == len(pes.taps) - 1
        is_new = output == 0 or tap >= width - stride
        loads = (("weight",) if output == 0 else ()) + (("input",) if is_new else ())
        product = record.products[number][at].item()
        yield Event(
            **_cycles(record, schedule.multiply_start[output, number], schedule.multiply_cycles),
            **common,
            operation="multiply",
            left=pes.filters[index, row, lane, tap].item(),
            right=pes.window(lane, tap)[at].item(),
            result=product,
            loads=loads,
            tap=number,
            is_complete=is_alone and is_last and number == 0,
        )
        if number:
            yield Event(
                **_cycles(record, schedule.add_start[output, number - 1], schedule.add_cycles),
                **common,
                operation="add",
                left=record.partial_sums[number - 1][at].item(),
                right=product,
                result=record.partial_sums[number][at].item(),
                is_complete=is_alone and is_last,
            )


def _column_events(record: Record, index: int, column: int, output: int) -> Iterator[Event]:
    """Yield the events that add up the partial sums of a column of PEs for one output.

    The other PEs of the column send their partial sums to the first PE, which adds them. `index` is the index of a
    strip in the pass, and `column` is a column of this strip.
    """
    schedule, one = record.schedule, record.one
    num_rows = record.pes.partial_sums.shape[1]
    num_sums = schedule.sum_start.shape[1]
    first = _common(record, index, 0, column, output)
    for number in range(num_sums):
        cycles = _cycles(record, schedule.sum_start[output, number], schedule.add_cycles)
        source, row = first["place"], number + 1
        if row < num_rows:
            received = record.partial_sums[-1][index, row, column, output].item()
            sender = _common(record, index, row, column, output)
            source = sender["place"]
            yield Event(
                **cycles, **sender, operation="send", left=None, right=None, result=received, target=first["place"]
            )
        else:
            assert record.carried is not None
            received = record.carried[index, column, output].item()
        yield Event(
            **cycles,
            **first,
            operation="sum",
            left=record.column_sums[number][index, column, output].item(),
            right=received,
            result=record.column_sums[number + 1][index, column, output].item(),
            source=source,
            is_complete=one.is_final and number == num_sums - 1,
        )


def _common(record: Record, index: int, row: int, column: int, output: int) -> _Where:
    strip: Strip = record.one.strips[index]
    return {
        "number": record.one.index,
        "place": (strip.array_row + row, strip.array_column + column),
        "output": (strip.image, strip.filter, strip.first_row + column, output),
    }


def _cycles(record: Record, start: Any, length: int) -> _Cycles:
    """Return the first and last cycle of an operation. The first cycle of the whole simulation has number 1.

    `start` is the operation's first cycle within its pass, counted from 0, and `length` is its number of cycles.
    """
    before = record.one.start_cycle + int(start)
    return {"cycle": before + min(1, length), "last_cycle": before + length}
