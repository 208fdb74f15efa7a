"""One convolution on the array: who holds what, what happens in every cycle, and the figures."""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import make_table
from paceline.dataflow.chips import load_chip
from paceline.dataflow.counting import conv_accesses
from paceline.dataflow.events import Event, Place, count_events, events
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.telling import about, holdings, number_text, output_text, summary
from paceline.dataflow.timing import MODELS

SCHEMA = 1
MANY_PES = 6  # beyond which every event has a line of its own, instead of a column per PE
MANY_EVENTS = 500_000  # of a whole simulation, beyond which none is printed
MANY_ROWS = 24  # lines of a matrix or of the table of PEs
MANY_OUTPUTS = 2  # matrices
MANY_PRODUCTS = 100_000  # of a PE in a pass, beyond which the other models are left out: pipelined goes through each


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
    for line in about(simulation):
        console.print(line, markup=False)
    if simulation.plan.num_passes > 1:
        console.print(f"What PEs hold in the first of {simulation.plan.num_passes:,} passes:")
    console.print(_holdings(simulation))
    if num_cycles and count_events(simulation) > MANY_EVENTS:
        console.print(f"{count_events(simulation):,} events are too many to print; --trace FILE has all of them.")
    elif num_cycles:
        shown = list(itertools.takewhile(lambda event: event.cycle <= num_cycles, events(simulation)))
        console.print(_cycle_table(simulation, shown))
        if shown[-1].number > 0:
            console.print("An empty line is between passes: PEs then hold other rows.")
        if num_cycles < simulation.cycles:
            console.print(f"... {simulation.cycles - num_cycles:,} cycles more; --cycles N, or --trace FILE for all.")
    _print_output(simulation, console)
    console.print(summary(simulation), markup=False)
    if simulation.plan.num_taps * simulation.plan.shape.output_width <= MANY_PRODUCTS:
        console.print(_beside(simulation), markup=False)


def _beside(simulation: Simulation) -> str:
    """What the same would take under the other models."""
    plan = simulation.plan
    others = {
        model: Simulation.of(simulation.operands, replace(plan.timing, model=model), plan.array).cycles
        for model in MODELS
        if model != plan.timing.model
    }
    return "Other models: " + ", ".join(f"{model} {cycles:,}" for model, cycles in others.items()) + " cycles"


def _holdings(simulation: Simulation) -> Any:
    """Which filter row and input row each PE of the first pass has, and whose partial sums."""
    table = make_table(
        "PE", "filter row", "input row", "partial sums of", text=("filter row", "input row", "partial sums of")
    )
    first = next(simulation.plan.passes())
    num_pes = first.num_columns * simulation.plan.set_rows
    for one in itertools.islice(holdings(simulation, first), MANY_ROWS):
        rows = ("all", "all") if simulation.plan.is_serial else (one.filter_row, one.input_row)
        table.add_row(
            _name(one.place),
            f"{rows[0]}: {_lanes(one.weights)}",
            f"{rows[1]}: {_lanes(one.pixels)}",
            f"output row {one.output_row}" + _which(simulation, one.strip.image, one.strip.filter, before=" of "),
        )
    if num_pes > MANY_ROWS:
        table.add_row(f"... {num_pes - MANY_ROWS} more", "", "", "")
    return table


def _lanes(lanes: list[list[Any]]) -> str:
    """Rows of all channels, cut where they are long."""
    text = " | ".join(
        " ".join(number_text(value) for value in lane[:12]) + (" ..." if len(lane) > 12 else "") for lane in lanes[:3]
    )
    return text + (f" | ... {len(lanes) - 3} more" if len(lanes) > 3 else "")


def _which(simulation: Simulation, image: int, number: int, *, before: str) -> str:
    """Image and filter, where there are several."""
    shape = simulation.plan.shape
    words = [f"image {image}"] if shape.num_images > 1 else []
    words += [f"filter {number}"] if shape.num_filters > 1 else []
    return f"{before}{', '.join(words)}" if words else ""


def _cycle_table(simulation: Simulation, found: list[Event]) -> Any:
    places = sorted({event.place for event in found})
    if len(places) > MANY_PES:
        table = make_table("cycle", "PE", "does", text=("PE", "does"))
        for event, following in zip(found, [*found[1:], None], strict=True):
            ends = following is not None and following.number > event.number
            table.add_row(_when(event), _name(event.place), escape(_said(simulation, event)), end_section=ends)
        return table
    table = make_table("cycle", *map(_name, places), text=tuple(map(_name, places)))
    number = 0
    for cycle, some in itertools.groupby(found, key=lambda event: event.cycle):
        cells: dict[Place, list[str]] = {place: [] for place in places}
        for event in some:
            if event.number > number:
                number = event.number
                table.add_section()
            until = f" (to cycle {event.last_cycle})" if event.last_cycle > cycle else ""
            cells[event.place].append(escape(_said(simulation, event) + until))
        table.add_row(str(cycle), *("\n".join(cells[place]) for place in places))
    return table


def _when(event: Event) -> str:
    return str(event.cycle) if event.last_cycle <= event.cycle else f"{event.cycle}-{event.last_cycle}"


def _said(simulation: Simulation, event: Event) -> str:
    """An event in words: what is received, done, sent and complete."""
    result = number_text(event.result)
    if event.operation == "send":
        return f"sends {result} to {_name(event.target or event.place)}"
    left, right = number_text(event.left), number_text(event.right)
    if event.operation == "multiply":
        text = f"{left} x {right} = {result}"
        new = [value for value, kind in ((left, "weight"), (right, "input")) if kind in event.loads]
        text += f", receives {' and '.join(new)}" if new else ""
    else:
        text = f"{left} + {right} = {result}"
        if event.source is not None:
            text += f", {right} kept" if event.source == event.place else f", {right} from {_name(event.source)}"
    return f"{text}: output {output_text(simulation, event)} complete" if event.is_complete else text


def _name(place: Place) -> str:
    return f"PE({place[0]},{place[1]})"


def _print_output(simulation: Simulation, console: Console) -> None:
    """The first outputs whole, each under its name; of the rest, how many there are."""
    output = simulation.output
    kinds = list(itertools.product(range(output.shape[0]), range(output.shape[1])))
    for image, number in kinds[:MANY_OUTPUTS]:
        console.print("output" + _which(simulation, image, number, before=" of "))
        matrix = output[image, number].tolist()
        for row in matrix[:MANY_ROWS]:
            line = " ".join(number_text(value) for value in row)
            console.print(f"  {line}", markup=False, soft_wrap=True, no_wrap=True, overflow="ellipsis")
        if len(matrix) > MANY_ROWS:
            console.print(f"  ... {len(matrix) - MANY_ROWS} rows more")
        console.print()
    if len(kinds) > MANY_OUTPUTS:
        console.print(f"... {len(kinds) - MANY_OUTPUTS:,} outputs more; --json FILE has all of them.")
