"""Compute the memory accesses and energy of a simulated convolution, and describe the simulation in lines of text.

Accesses are counted by the same rules as in `row_stationary`. `placement` explains logical sets of processing elements
(PEs), strips, folds and passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.dataflow.accesses import Accesses
from paceline.dataflow.chips import load_chip
from paceline.dataflow.pe_events import Event, Place
from paceline.dataflow.placement import Pass, Placement, Strip
from paceline.dataflow.simulator import PEArray, Simulation
from paceline.dataflow.timing import MODELS
from paceline.results.dataflow import ArrayUse, ConvResult, EnergyByLevel, LogicalSet
from paceline.results.study import SCHEMA


def conv_accesses(simulation: Simulation) -> Accesses:
    """Count the words moved at every memory level.

    DRAM is accessed once per word. The buffer multicasts a word to all PEs that need it. A PE holds an input as long
    as the PE's window covers it, a weight for one pass, and a partial sum until the column is added up. Between folds
    (groups of kernel rows that are computed one after another), the first PE of a column holds the column's sums.

    A partial sum is written when its first product is computed, and read and written by every addition. It is also read
    when it is sent to the first PE of the column, when the sum of the next fold is added to it, and when it is sent to
    the buffer.
    """
    plan, shape = simulation.plan, simulation.plan.shape
    weights, pixels = shape.num_filters * shape.weights_per_output, shape.num_read_pixels
    outputs, macs = shape.num_outputs, shape.num_multiplications
    loads = [_loads(plan, one) for one in plan.passes()]
    filter_moves, input_moves, filter_reads, input_reads = (sum(column) for column in zip(*loads, strict=True))
    held = outputs * (plan.num_folds - 1)
    hops = 0 if plan.is_serial else outputs * (shape.kernel_height - plan.num_folds)
    starts = outputs * (1 if plan.is_serial else shape.kernel_height)
    return Accesses(
        dram={"filter": weights, "input": pixels, "partial_sum": outputs},
        buffer={
            "filter": weights + filter_reads,
            "input_fill": pixels,
            "input": input_reads,
            "partial_sum": 2 * outputs,
        },
        neighbour={"filter": filter_moves, "input": input_moves, "partial_sum": hops},
        register_file={
            "filter": macs + filter_moves,
            "input": macs + input_moves,
            "partial_sum": starts + 2 * shape.num_additions + hops + held + outputs,
        },
    )


def _loads(plan: Placement, one: Pass) -> tuple[int, int, int, int]:
    """Return how many words a pass moves, as four numbers.

    The first two are the numbers of weights and of inputs that PEs receive. The last two are the numbers of weights and
    of inputs that are read from the buffer.
    """
    shape = plan.shape
    rows = 1 if plan.is_serial else len(one.kernel_rows)
    lanes = shape.num_channels * (shape.kernel_height if plan.is_serial else 1)
    pes = rows * one.num_columns
    num_filters = len({strip.filter for strip in one.strips})
    return (
        pes * lanes * shape.kernel_width,
        pes * lanes * shape.row_reads,
        num_filters * rows * lanes * shape.kernel_width,
        _input_rows(plan, one) * shape.num_channels * shape.row_reads,
    )


def _input_rows(plan: Placement, one: Pass) -> int:
    """Return the number of different input rows that a pass reads; a row that several sets of PEs read counts once."""
    strips = {(strip.image, strip.first_row, strip.num_columns) for strip in one.strips}
    return len(
        {
            (image, row * plan.shape.stride[0] + kernel_row)
            for image, first, count in strips
            for row in range(first, first + count)
            for kernel_row in one.kernel_rows
        }
    )


def conv_result(simulation: Simulation) -> ConvResult:
    """Return the results of a simulation; energies are computed with the parameters of the built-in chip `eyeriss`."""
    plan = simulation.plan
    shape, timing = plan.shape, plan.timing
    moved, chip = conv_accesses(simulation), load_chip("eyeriss")
    return ConvResult(
        schema=SCHEMA,
        model=timing.model,
        multiply_cycles=timing.multiply_cycles,
        add_cycles=timing.add_cycles,
        output=simulation.operands.without_added_axes(simulation.output).tolist(),
        cycles=simulation.cycles,
        pes=plan.num_logical_pes,
        utilisation=simulation.utilisation,
        set=LogicalSet(rows=shape.kernel_height, columns=shape.output_height, side_by_side=plan.num_sets_side_by_side),
        array=ArrayUse(
            rows=plan.array[0],
            columns=plan.array[1],
            pes=plan.array[0] * plan.array[1],
            utilisation=simulation.array_utilisation,
        ),
        folds=plan.num_folds,
        strip_columns=plan.strip_columns,
        multiplications=shape.num_multiplications,
        additions=shape.num_additions,
        accesses=moved.counts(),
        energy=EnergyByLevel(mac=shape.num_multiplications * chip.energy.mac, **moved.energy(chip)),
    )


@dataclass(frozen=True, kw_only=True)
class PEContents:
    """Data of one PE (processing element) during a pass.

    The data are weights, pixels, the strip of the PE, and the indices of its filter row, input row and output row.
    """

    place: Place
    weights: list[list[Any]]
    pixels: list[list[Any]]
    filter_row: int
    input_row: int
    strip: Strip
    output_row: int


def pe_contents(simulation: Simulation, one: Pass) -> Iterator[PEContents]:
    """Yield the contents of every PE of a pass.

    Under the execution model `serial`, a PE holds all kernel rows; `filter_row` and `input_row` are then the indices of
    the first filter row and of the first input row.
    """
    pes = PEArray(simulation.plan, one, simulation.operands.images, simulation.operands.filters)
    for index, strip in enumerate(one.strips):
        for row, column in itertools.product(range(pes.filters.shape[1]), range(strip.num_columns)):
            kernel_row, output_row = one.kernel_rows[row], strip.first_row + column
            yield PEContents(
                place=(strip.array_row + row, strip.array_column + column),
                weights=pes.filters[index, row].tolist(),
                pixels=pes.inputs[index, row, column].tolist(),
                filter_row=kernel_row,
                input_row=output_row * simulation.plan.shape.stride[0] + kernel_row,
                strip=strip,
                output_row=output_row,
            )


def placement_lines(simulation: Simulation) -> Iterator[str]:
    """Yield lines of text that describe the execution model and the placement of the convolution on the array."""
    plan, shape = simulation.plan, simulation.plan.shape
    yield f"{plan.timing.model}: {MODELS[plan.timing.model]}"
    size = f"a logical set of {shape.kernel_height} x {shape.output_height} PEs"
    sets = shape.num_images * shape.num_filters
    if sets > 1:
        size += f", {sets} times (images: {shape.num_images}, filters: {shape.num_filters})"
    if plan.is_serial:
        yield f"{size}, of which one works"
        return
    yield f"{size}, on an array of {plan.array[0]} x {plan.array[1]}"
    if plan.num_folds > 1:
        yield f"folded: {plan.set_rows} of {shape.kernel_height} kernel rows at a time, {plan.num_folds} folds"
    if plan.strip_columns < shape.output_height:
        yield f"folded: {plan.strip_columns} of {shape.output_height} output rows at a time"
    if plan.num_side_by_side > 1:
        yield f"replicated: {plan.num_side_by_side} sets or strips side by side"


def summary(simulation: Simulation) -> str:
    """Return a line of text with the number of cycles, the number of PEs and their utilisation."""
    plan, used = simulation.plan, f"{simulation.utilisation:.1%}"
    if plan.array != (plan.shape.kernel_height, plan.shape.output_height):
        used += f" (of the {plan.array[0]} x {plan.array[1]} in the array: {simulation.array_utilisation:.1%})"
    pes = "1 PE" if plan.num_logical_pes == 1 else f"{plan.num_logical_pes:,} PEs"
    return f"{simulation.cycles:,} cycles, {pes} of the logical set, utilisation {used}"


def number_text(value: Any) -> str:
    """Format an integer in full, and any other number with six significant digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def output_text(simulation: Simulation, event: Event) -> str:
    """Format the index of the output that an event computes: `[row, column]`.

    If the convolution has several images or filters, the index is `[image, filter, row, column]`.
    """
    shape = simulation.plan.shape
    is_plain = shape.num_images * shape.num_filters == 1
    return f"[{', '.join(map(str, event.output[2:] if is_plain else event.output))}]"
