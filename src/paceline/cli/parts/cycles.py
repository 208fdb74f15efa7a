"""One convolution on the array: who holds what, what happens in every cycle, and the figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import make_table
from paceline.dataflow.array import PEArray
from paceline.dataflow.chips import load_chip
from paceline.dataflow.counting import conv_accesses
from paceline.dataflow.events import Event, Place, count_events, events
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.timing import MODELS

SCHEMA = 1
MANY_PES = 6  # beyond which every event has a line of its own, instead of a column per PE
MANY_EVENTS = 500_000  # of a whole simulation, beyond which none is printed
MANY_ROWS = 24  # lines of a matrix or of the table of PEs


def conv_result(simulation: Simulation) -> dict[str, Any]:
    """The result for `--json`."""
    plan = simulation.plan
    shape, timing = plan.shape, plan.timing
    moved, chip = conv_accesses(simulation), load_chip("eyeriss")
    return {
        "schema": SCHEMA,
        "model": timing.model,
        "multiply_cycles": timing.multiply_cycles,
        "add_cycles": timing.add_cycles,
        "output": simulation.operands.shown(simulation.output).tolist(),
        "cycles": simulation.cycles,
        "pes": plan.num_logical_pes,
        "utilisation": simulation.utilisation,
        "set": {
            "rows": shape.kernel_height,
            "columns": shape.output_height,
            "side_by_side": plan.num_sets_side_by_side,
        },
        "array": {
            "rows": plan.array[0],
            "columns": plan.array[1],
            "pes": plan.array[0] * plan.array[1],
            "utilisation": simulation.array_utilisation,
        },
        "folds": plan.num_folds,
        "strip_columns": plan.strip_columns,
        "multiplications": shape.num_multiplications,
        "additions": shape.num_additions,
        "accesses": asdict(moved),
        "energy": {"mac": shape.num_multiplications * chip.energy.mac, **moved.energy(chip)},
    }


def print_conv(simulation: Simulation, console: Console, *, num_cycles: int) -> None:
    plan = simulation.plan
    for line in _about(simulation):
        console.print(line, markup=False)
    console.print(_holdings(simulation))
    if num_cycles and count_events(simulation) > MANY_EVENTS:
        console.print(f"{count_events(simulation):,} events are too many to print; --trace FILE has all of them.")
    elif num_cycles:
        shown = itertools.takewhile(lambda event: event.cycle <= num_cycles, events(simulation))
        console.print(_cycle_table(list(shown)))
        if num_cycles < simulation.cycles:
            console.print(f"... {simulation.cycles - num_cycles:,} cycles more; --cycles N, or --trace FILE for all.")
    console.print("output")
    _print_output(simulation, console)
    console.print(
        f"{simulation.cycles:,} cycles, {plan.num_logical_pes} PEs of the logical set, "
        f"utilisation {simulation.utilisation:.1%}",
        markup=False,
    )


def _about(simulation: Simulation) -> Iterator[str]:
    plan, shape = simulation.plan, simulation.plan.shape
    yield f"{plan.timing.model}: {MODELS[plan.timing.model]}"
    size = f"a logical set of {shape.kernel_height} x {shape.output_height} PEs"
    if plan.is_serial:
        yield f"{size}, of which one works"
        return
    sets = shape.num_images * shape.num_filters
    times = "" if sets == 1 else f", {sets} times ({shape.num_images} images x {shape.num_filters} filters)"
    yield f"{size}{times}, on an array of {plan.array[0]} x {plan.array[1]}"
    if plan.num_folds > 1:
        yield f"folded: {plan.set_rows} of {shape.kernel_height} kernel rows at a time, {plan.num_folds} folds"
    if plan.strip_columns < shape.output_height:
        yield f"folded: {plan.strip_columns} of {shape.output_height} output rows at a time"
    if plan.num_side_by_side > 1:
        yield f"replicated: {plan.num_side_by_side} sets or strips side by side"


def _holdings(simulation: Simulation) -> Any:
    """Which filter row and input row each PE of the first pass has, and whose partial sums."""
    table = make_table(
        "PE", "filter row", "input row", "partial sums of", text=("filter row", "input row", "partial sums of")
    )
    one = next(simulation.plan.passes())
    pes = PEArray(simulation.plan, one, simulation.operands.images, simulation.operands.filters)
    shape = simulation.plan.shape
    lines = 0
    for index, strip in enumerate(one.strips):
        rows = [0] if simulation.plan.is_serial else range(len(one.kernel_rows))
        for row, column in itertools.product(rows, range(strip.num_columns)):
            lines += 1
            if lines > MANY_ROWS:
                continue
            kernel_row = one.kernel_rows[row]
            input_row = (strip.first_row + column) * shape.stride[0] + kernel_row
            weights = pes.filters[index, row].tolist()
            pixels = pes.inputs[index, row, column].tolist()
            table.add_row(
                _name((strip.array_row + row, strip.array_column + column)),
                f"{'all' if simulation.plan.is_serial else kernel_row}: {_lanes(weights)}",
                f"{'all' if simulation.plan.is_serial else input_row}: {_lanes(pixels)}",
                f"output row {strip.first_row + column}" + _which(simulation, strip.image, strip.filter),
            )
    if lines > MANY_ROWS:
        table.add_row(f"... {lines - MANY_ROWS} more", "", "", "")
    return table


def _lanes(lanes: list[list[Any]]) -> str:
    """Rows of all channels, cut where they are long."""
    text = " | ".join(
        " ".join(_text(value) for value in lane[:12]) + (" ..." if len(lane) > 12 else "") for lane in lanes[:3]
    )
    return text + (f" | ... {len(lanes) - 3} more" if len(lanes) > 3 else "")


def _which(simulation: Simulation, image: int, number: int) -> str:
    shape = simulation.plan.shape
    words = ([f"image {image}"] if shape.num_images > 1 else []) + (
        [f"filter {number}"] if shape.num_filters > 1 else []
    )
    return f" of {', '.join(words)}" if words else ""


def _cycle_table(found: list[Event]) -> Any:
    places = sorted({event.place for event in found})
    if len(places) > MANY_PES:
        table = make_table("cycle", "PE", "does", text=("PE", "does"))
        for event in found:
            table.add_row(_when(event), _name(event.place), escape(_said(event)))
        return table
    table = make_table("cycle", *map(_name, places), text=tuple(map(_name, places)))
    for cycle, some in itertools.groupby(found, key=lambda event: event.cycle):
        cells: dict[Place, list[str]] = {place: [] for place in places}
        for event in some:
            until = f" (to cycle {event.last_cycle})" if event.last_cycle > cycle else ""
            cells[event.place].append(escape(_said(event) + until))
        table.add_row(str(cycle), *("\n".join(cells[place]) for place in places))
    return table


def _when(event: Event) -> str:
    return str(event.cycle) if event.last_cycle <= event.cycle else f"{event.cycle}-{event.last_cycle}"


def _said(event: Event) -> str:
    """An event in words: what is received, done, sent and complete."""
    if event.operation == "send":
        return f"sends {_text(event.result)} to {_name(event.target or event.place)}"
    left, right = _text(event.left), _text(event.right)
    if event.operation == "multiply":
        text = f"{left} x {right} = {_text(event.result)}"
        new = [value for value, kind in ((left, "weight"), (right, "input")) if kind in event.loads]
        return f"{text}, receives {' and '.join(new)}" if new else text
    text = f"{left} + {right} = {_text(event.result)}"
    if event.source is not None and event.source != event.place:
        text += f", {right} from {_name(event.source)}"
    elif event.source is not None:
        text += f", {right} kept"
    return f"{text}: output {_index(event)} complete" if event.is_complete else text


def _text(value: Any) -> str:
    """Whole numbers as they are, others with six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _index(event: Event) -> str:
    image, number, row, column = event.output
    outer = [str(value) for value in (image, number)] if image or number else []
    return f"[{', '.join([*outer, str(row), str(column)])}]"


def _name(place: Place) -> str:
    return f"PE({place[0]},{place[1]})"


def _print_output(simulation: Simulation, console: Console) -> None:
    shown = simulation.operands.shown(simulation.output)
    for matrix in shown.reshape(-1, *shown.shape[-2:])[:2]:
        lines = [" ".join(_text(value) for value in row) for row in matrix.tolist()[:MANY_ROWS]]
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True, no_wrap=True, overflow="ellipsis")
        if len(matrix) > MANY_ROWS:
            console.print(f"  ... {len(matrix) - MANY_ROWS} rows more")
        console.print()
