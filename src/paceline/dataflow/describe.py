"""Text and plain values that describe a simulated convolution, for tables and pages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.dataflow.pe_events import Event, Place
from paceline.dataflow.placement import Pass, Strip
from paceline.dataflow.simulator import PEArray, Simulation
from paceline.dataflow.timing import MODELS


@dataclass(frozen=True, kw_only=True)
class Holding:
    """Contents of a PE in a pass: weights and pixels by lane, and the output row of its partial sums."""

    place: Place
    weights: list[list[Any]]
    pixels: list[list[Any]]
    filter_row: int
    input_row: int
    strip: Strip
    output_row: int


def holdings(simulation: Simulation, one: Pass) -> Iterator[Holding]:
    """Yield the contents of every PE of a pass. Under `serial` one PE holds all rows, and the first is reported."""
    pes = PEArray(simulation.plan, one, simulation.operands.images, simulation.operands.filters)
    for index, strip in enumerate(one.strips):
        for row, column in itertools.product(range(pes.filters.shape[1]), range(strip.num_columns)):
            kernel_row, output_row = one.kernel_rows[row], strip.first_row + column
            yield Holding(
                place=(strip.array_row + row, strip.array_column + column),
                weights=pes.filters[index, row].tolist(),
                pixels=pes.inputs[index, row, column].tolist(),
                filter_row=kernel_row,
                input_row=output_row * simulation.plan.shape.stride[0] + kernel_row,
                strip=strip,
                output_row=output_row,
            )


def about(simulation: Simulation) -> Iterator[str]:
    """Yield lines that describe the execution model and the placement of the logical set on the array."""
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
    plan, used = simulation.plan, f"{simulation.utilisation:.1%}"
    if plan.array != (plan.shape.kernel_height, plan.shape.output_height):
        used += f" (of the {plan.array[0]} x {plan.array[1]} in the array: {simulation.array_utilisation:.1%})"
    pes = "1 PE" if plan.num_logical_pes == 1 else f"{plan.num_logical_pes:,} PEs"
    return f"{simulation.cycles:,} cycles, {pes} of the logical set, utilisation {used}"


def number_text(value: Any) -> str:
    """Format integers in full, other numbers with six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def output_text(simulation: Simulation, event: Event) -> str:
    """Format the index of an output: row and column, preceded by image and filter if there are several."""
    shape = simulation.plan.shape
    is_plain = shape.num_images * shape.num_filters == 1
    return f"[{', '.join(map(str, event.output[2:] if is_plain else event.output))}]"
