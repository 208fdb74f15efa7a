"""The output of `paceline dataflow`: a convolution cycle by cycle, or the cost of a network.

The simulated accelerator has an array of processing elements (PEs).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from paceline.dataflow.pe_events import Event, count_events, events
from paceline.dataflow.pe_events import Place as PE
from paceline.dataflow.simulation_results import (
    PEContents,
    number_text,
    output_text,
    pe_contents,
    placement_lines,
    summary,
)
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import MODELS
from paceline.errors import UsageError
from paceline.present.charts.registry import make_section
from paceline.present.page_parts import Column, Finding, Page, Table, Visibility
from paceline.present.terminal import say, show_tables
from paceline.results.dataflow import Cost, LayerCost, LayerEnergy, NetworkCost

KIND = "Paceline dataflow"
MAX_PE_COLUMNS = 6  # with more PEs, the table of cycles has a row per event instead of a column per PE
MIN_COLUMN_WIDTH = 18  # characters; if columns would be narrower, the table also has a row per event
MAX_PRINTED_EVENTS = 500_000  # no event of a larger simulation is printed
MAX_ROWS = 24  # rows of a printed matrix or of the table of PEs
MAX_OUTPUTS = 2  # printed output matrices
MAX_PRODUCTS = 100_000  # of a PE per pass; with more, cycles under the other timing models take too long to compute
MAX_CHART_CYCLES = 10_000_000  # a chart of more cycles needs several hundred megabytes of memory
LEVELS = {"registers": "register_file", "neighbours": "neighbour", "buffer": "buffer", "DRAM": "dram"}


def about_conv(simulation: Simulation) -> str:
    """Describe a simulated convolution in one sentence: its shape, the array of PEs, and the number of cycles."""
    return f"{'; '.join([*placement_lines(simulation), summary(simulation)])}."


def check_conv_charts(simulation: Simulation) -> None:
    """Raise UsageError if a simulation has too many cycles for a chart of utilisation."""
    if simulation.cycles > MAX_CHART_CYCLES:
        raise UsageError(
            f"{simulation.cycles:,} cycles are too many for a chart, which shows at most {MAX_CHART_CYCLES:,}; "
            "use a smaller input or shorter operations"
        )


def conv_page(simulation: Simulation) -> Page:
    """Return a page with charts of one simulated convolution."""
    check_conv_charts(simulation)
    return Page(
        kind=KIND,
        title="A convolution on an array of PEs",
        description=about_conv(simulation).removesuffix("."),
        make_sections=lambda: [make_section("conv", "Utilisation and energy", simulation)],
    )


def show_conv(console: Console, simulation: Simulation, *, num_cycles: int) -> None:
    """Print a simulated convolution: values in processing elements (PEs), events of the first cycles, first outputs."""
    for line in placement_lines(simulation):
        say(console, line)
    if simulation.plan.num_passes > 1:
        say(console, f"Values of PEs in the first of {simulation.plan.num_passes:,} passes:")
    show_tables(console, [_pe_table(simulation)])
    if num_cycles and count_events(simulation) > MAX_PRINTED_EVENTS:
        say(console, f"{count_events(simulation):,} events are too many to print; --trace FILE writes all.")
    elif num_cycles:
        first_events = list(itertools.takewhile(lambda event: event.cycle <= num_cycles, events(simulation)))
        show_tables(console, [_cycles(simulation, first_events, console.width)])
        if num_cycles < simulation.cycles:
            say(
                console,
                f"... {simulation.cycles - num_cycles:,} more cycles; --cycles N prints more, --trace FILE writes all.",
            )
    for line in _output(simulation):
        console.print(line, markup=False, soft_wrap=True, no_wrap=True, overflow="ellipsis")
    say(console, summary(simulation))
    if simulation.plan.num_taps * simulation.plan.shape.output_width <= MAX_PRODUCTS:
        say(console, _other_models(simulation))


def _other_models(simulation: Simulation) -> str:
    """Return a line with the cycles of the same convolution under the other timing models."""
    plan = simulation.plan
    others = {
        model: Simulation.of(simulation.operands, replace(plan.timing, model=model), plan.array).cycles
        for model in MODELS
        if model != plan.timing.model
    }
    return "Other models: " + ", ".join(f"{model} {cycles:,}" for model, cycles in others.items()) + " cycles"


def _pe_table(simulation: Simulation) -> Table[PEContents]:
    """Return a table of the processing elements (PEs) in the first pass (the work until filters are loaded again).

    The columns are the filter row and the input row that a PE holds, and the output row of its partial sums.
    """
    is_serial = simulation.plan.is_serial
    first = next(simulation.plan.passes())
    num_pes = first.num_columns * simulation.plan.set_rows
    columns: list[Column[PEContents]] = [
        Column(title="PE", text=lambda one: _pe_name(one.place), is_number=False),
        Column(
            title="filter row",
            text=lambda one: f"{'all' if is_serial else one.filter_row}: {_lanes(one.weights)}",
            is_number=False,
        ),
        Column(
            title="input row",
            text=lambda one: f"{'all' if is_serial else one.input_row}: {_lanes(one.pixels)}",
            is_number=False,
        ),
        Column(
            title="partial sums of",
            text=lambda one: (
                f"output row {one.output_row}" + _image_and_filter(simulation, one.strip.image, one.strip.filter)
            ),
            is_number=False,
        ),
    ]
    notes = [f"... {num_pes - MAX_ROWS} more"] if num_pes > MAX_ROWS else []
    rows = list(itertools.islice(pe_contents(simulation, first), MAX_ROWS))
    return Table(columns=columns, rows=rows, notes=notes)


def _lanes(lanes: list[list[Any]]) -> str:
    """Format the values in the lanes of a processing element: the first few values of the first few lanes.

    A lane has the values of one channel or, under the execution model `serial`, of one channel and kernel row.
    """
    text = " | ".join(
        " ".join(number_text(value) for value in lane[:12]) + (" ..." if len(lane) > 12 else "") for lane in lanes[:3]
    )
    return text + (f" | ... {len(lanes) - 3} more" if len(lanes) > 3 else "")


def _image_and_filter(simulation: Simulation, image: int, number: int) -> str:
    """Return " of image I, filter F". The image or filter is left out if the convolution has only one."""
    shape = simulation.plan.shape
    words = [f"image {image}"] if shape.num_images > 1 else []
    words += [f"filter {number}"] if shape.num_filters > 1 else []
    return f" of {', '.join(words)}" if words else ""


def _cycles(simulation: Simulation, shown: list[Event], width: int) -> Table[Any]:
    """Return a table of events with a row for each cycle of a pass and a column for each PE.

    If there are more than `MAX_PE_COLUMNS` PEs, or the columns do not fit into `width` characters, the table has a row
    for each event instead.
    """
    places = sorted({event.place for event in shown})
    has_passes = shown[-1].number > 0
    if len(places) > MAX_PE_COLUMNS or MIN_COLUMN_WIDTH * len(places) > width - 10:
        per_event: list[Column[Event]] = [
            Column(title="cycle", text=_cycle_range),
            Column(title="PE", text=lambda event: _pe_name(event.place), is_number=False),
            Column(title="does", text=lambda event: _event_text(simulation, event), is_number=False),
        ]
        if has_passes:
            per_event.insert(1, Column(title="pass", text=lambda event: str(event.number + 1)))
        return Table(columns=per_event, rows=shown)
    by_cycle = [list(group) for _, group in itertools.groupby(shown, key=lambda event: (event.cycle, event.number))]
    columns: list[Column[list[Event]]] = [Column(title="cycle", text=lambda group: str(group[0].cycle))]
    if has_passes:
        columns.append(Column(title="pass", text=lambda group: str(group[0].number + 1)))
    columns += [Column(title=_pe_name(place), text=_events_of(simulation, place), is_number=False) for place in places]
    return Table(columns=columns, rows=by_cycle)


def _events_of(simulation: Simulation, place: PE) -> Callable[[list[Event]], str]:
    """Return a function that formats the events of one PE in one cycle, for a cell of the table."""

    def text(group: list[Event]) -> str:
        texts = []
        for event in group:
            if event.place == place:
                end = f" (to cycle {event.last_cycle})" if event.last_cycle > event.cycle else ""
                texts.append(_event_text(simulation, event) + end)
        return "; ".join(texts)

    return text


def _cycle_range(event: Event) -> str:
    return str(event.cycle) if event.last_cycle <= event.cycle else f"{event.cycle}-{event.last_cycle}"


def _event_text(simulation: Simulation, event: Event) -> str:
    """Describe what a PE does in an event."""
    result = number_text(event.result)
    if event.operation == "send":
        return f"sends {result} to {_pe_name(event.target or event.place)}"
    left, right = number_text(event.left), number_text(event.right)
    if event.operation == "multiply":
        text = f"{left} x {right} = {result}"
        new = [value for value, kind in ((left, "weight"), (right, "input")) if kind in event.loads]
        text += f", receives {' and '.join(new)}" if new else ""
    else:
        text = f"{left} + {right} = {result}"
        if event.source is not None:
            is_own = event.source == event.place
            text += f", {right} stored earlier" if is_own else f", {right} from {_pe_name(event.source)}"
    return f"{text}: output {output_text(simulation, event)} complete" if event.is_complete else text


def _pe_name(place: PE) -> str:
    return f"PE({place[0]},{place[1]})"


def _output(simulation: Simulation) -> Iterator[str]:
    """Yield lines with the first output matrices, and a line with the number of output matrices that are left out."""
    output = simulation.output
    kinds = list(itertools.product(range(output.shape[0]), range(output.shape[1])))
    for image, number in kinds[:MAX_OUTPUTS]:
        yield "output" + _image_and_filter(simulation, image, number)
        matrix = output[image, number].tolist()
        for row in matrix[:MAX_ROWS]:
            yield "  " + " ".join(number_text(value) for value in row)
        if len(matrix) > MAX_ROWS:
            yield f"  ... {len(matrix) - MAX_ROWS} more rows"
        yield ""
    if len(kinds) > MAX_OUTPUTS:
        yield f"... {len(kinds) - MAX_OUTPUTS:,} more outputs; --json FILE writes all."


@dataclass(frozen=True)
class CostRow:
    """The cost of a layer, or of all layers together; in the latter case, `layer` is None."""

    name: str
    cost: Cost
    layer: LayerCost | None = None


def network_page(result: NetworkCost) -> Page:
    """Return a page with time, memory accesses and energy of a network's convolutions on a chip."""
    intro = f"{result.network}, batch {result.batch}, on {result.chip_description}"
    rows = [CostRow(layer.name, layer, layer) for layer in result.layers]
    if len(rows) > 1:
        rows.append(CostRow("all", result.total))
    tables: list[Table[Any]] = [_layer_table(result, rows), _access_table(rows)]
    if result.total.energy_by_dataflow is not None:
        tables.append(_dataflow_table(result.total.energy_by_dataflow, result.total.macs))
    return Page(
        kind=KIND,
        title="A network on a chip",
        description=f"{intro}; mappings chosen by {result.objective}",
        intro=[intro],
        tables=tables,
        tables_title="Layers",
        findings=[
            Finding(f"Mappings chosen by {result.objective}.", "Mappings", places=Visibility.TEXT),
            *_zero_findings(result),
        ],
        make_sections=lambda: [make_section("network", "Utilisation, time and energy", result)],
    )


def _layer_table(result: NetworkCost, rows: Sequence[CostRow]) -> Table[CostRow]:
    columns: list[Column[CostRow]] = [
        Column(title="Layer", short="layer", text=lambda row: row.name, is_number=False),
        Column(
            title="Mapping",
            short="mapping",
            text=lambda row: " ".join(map(str, row.layer.mapping.values())) if row.layer else "",
            importance=60,
            help="m n e p q r t",
        ),
        Column(
            title="PEs",
            text=lambda row: str(row.layer.active_pes) if row.layer else "",
            importance=50,
            help="active PEs, R x e x r x t",
        ),
        Column(title="Used", short="used", text=lambda row: f"{row.cost.utilisation:.0%}", help="MACs over PEs x time"),
        Column(title="MACs", text=lambda row: f"{_readable(row.cost.macs / 1e6, 0)} M", importance=10),
        Column(title="ms", text=lambda row: _readable(1e3 * row.cost.time_s, 2)),
        Column(
            title="Buffer, MB",
            short="buffer MB",
            text=lambda row: _readable(row.cost.buffer_traffic_bytes / 1e6, 1),
            importance=40,
            help="between buffer and array",
        ),
        Column(
            title="DRAM, MB",
            short="DRAM MB",
            text=lambda row: _readable(row.cost.dram_bytes / 1e6, 2),
            importance=30,
            help="with zeros compressed",
        ),
        Column(
            title="Energy per MAC",
            short="energy/MAC",
            text=lambda row: f"{row.cost.energy.per_mac:.2f}",
            help="energy of a MAC is 1; DRAM uncompressed",
        ),
        Column(
            title="Bound",
            short="bound",
            text=lambda row: row.layer.bound if row.layer else "",
            is_number=False,
            help="bottleneck: multiplications (compute), transfers between buffer and array (buffer), or DRAM",
        ),
    ]
    if any(layer.input_zeros for layer in result.layers):
        zeros: Column[CostRow] = Column(
            title="Zeros",
            short="zeros",
            text=lambda row: f"{row.layer.input_zeros:.0%}" if row.layer else "",
            importance=20,
            help="share of zeros in the input of the layer",
        )
        columns.insert(4, zeros)
    return Table(id="layers", columns=columns, rows=rows)


def _access_table(rows: Sequence[CostRow]) -> Table[CostRow]:
    columns: list[Column[CostRow]] = [
        Column(title="Layer", short="layer", text=lambda row: row.name, is_number=False),
        Column(title="Cycles", short="cycles", text=lambda row: f"{row.cost.cycles:,}"),
        *(Column(title=title, text=_megawords_at(level)) for title, level in LEVELS.items()),
    ]
    title = "Cycles without waiting for DRAM, and accesses to each memory level in millions of words:"
    return Table(id="accesses", title=title, columns=columns, rows=rows)


def _megawords_at(level: str) -> Callable[[CostRow], str]:
    return lambda row: _readable(row.cost.accesses.total(level) / 1e6, 2)


def _dataflow_table(energies: dict[str, LayerEnergy], macs: int) -> Table[tuple[str, LayerEnergy]]:
    """Return a table with a row for each dataflow: its energy per MAC by memory level, over all layers."""
    levels = {"MAC": ("mac", 10), "registers": ("register_file", 20), "neighbour": ("neighbour", 30)}
    levels |= {"buffer": ("buffer", 40), "DRAM": ("dram", 50)}
    columns: list[Column[tuple[str, LayerEnergy]]] = [
        Column(title="Energy per MAC", short="energy per MAC", text=lambda row: row[0], is_number=False),
        *(
            Column(title=title, text=_energy_at(level, macs), importance=importance)
            for title, (level, importance) in levels.items()
        ),
        Column(title="total", text=lambda row: f"{row[1].per_mac:.2f}"),
        Column(title="times", text=lambda row: f"{row[1].over_row_stationary or 1.0:.2f}x"),
    ]
    title = "Energy of other dataflows on the same chip:"
    return Table(id="dataflows", title=title, columns=columns, rows=list(energies.items()))


def _energy_at(level: str, macs: int) -> Callable[[tuple[str, LayerEnergy]], str]:
    return lambda row: f"{row[1].by_level(per=macs)[level]:.2f}"


def _readable(value: float, decimals: int) -> str:
    """Format a number with `decimals` decimals, or with more decimals (up to six) if it is small."""
    while decimals < 6 and 0 < value < 10 ** (1 - decimals):
        decimals += 1
    return f"{value:,.{decimals}f}"


def _zero_findings(result: NetworkCost) -> list[Finding]:
    """Return findings on the energy and the DRAM traffic that zeros in tensors save.

    Returns an empty list if the zeros of any layer were assumed instead of counted on test images.
    """
    if not all(row.is_counted for row in result.layers):
        return []
    total, rows = result.total, result.layers
    gated, plain = total.gated, total.dram_uncompressed_bytes
    found = [
        Finding(
            f"Zeros counted on test images: {gated.products / total.macs:.0%} of the products are with 0, which saves "
            f"{gated.energy_saved / total.energy.total:.0%} of the energy; compression reduces DRAM traffic to "
            f"{total.dram_bytes / plain:.0%} of {plain / 1e6:.2f} MB.",
            "Zeros",
        )
    ]
    counts = [(row.filter_zeros, row.shape.num_weights) for row in rows if row.filter_zeros is not None]
    if len(counts) == len(rows):
        share = sum(zeros * weights for zeros, weights in counts) / sum(weights for _, weights in counts)
        found.append(
            Finding(
                f"Integer-only: int8 weights, {share:.1%} of them zero; words have the chip's {result.word_bits} bits.",
                "Zeros",
            )
        )
    return found
