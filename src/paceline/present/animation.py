"""Pages of the accelerator: a convolution that plays cycle by cycle, and charts of utilisation and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from paceline.dataflow.chips import load_chip
from paceline.dataflow.counting import conv_accesses
from paceline.dataflow.events import OPERATIONS, Event, count_events, events
from paceline.dataflow.plan import Pass
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.telling import about, holdings, number_text, summary
from paceline.errors import UsageError
from paceline.report.chart import Chart, compact
from paceline.report.dataflow_charts import energy_chart, network_charts, utilisation_chart
from paceline.report.html import packed_plotly, policy_for, template_file, templates, write_whole

MAX_EVENTS = 50_000  # a page of a few megabytes that a browser still steps through at once
MAX_PES = 400
MAX_CYCLES = 10_000_000  # of a chart: some hundred megabytes while it is made


def check_animation(simulation: Simulation) -> None:
    """Whether it is too much for a page; nothing is calculated for it."""
    count, (rows, columns) = count_events(simulation), simulation.plan.array
    if max(count, simulation.cycles) > MAX_EVENTS or rows * columns > MAX_PES:
        raise UsageError(
            f"{count:,} events in {simulation.cycles:,} cycles on {rows} x {columns} PEs are too many for one page, "
            f"which shows up to {MAX_EVENTS:,} of each on {MAX_PES} PEs; take a part of the input, or write a --trace"
        )


def check_conv_charts(simulation: Simulation) -> None:
    """The same for the chart of utilisation, which looks at every cycle."""
    if simulation.cycles > MAX_CYCLES:
        raise UsageError(
            f"{simulation.cycles:,} cycles are too many for a chart, which shows up to {MAX_CYCLES:,}; "
            "take a part of the input, or shorter operations"
        )


def write_animation(simulation: Simulation, output: str | Path) -> Path:
    """A page that plays every cycle, whole or not at all."""
    check_animation(simulation)
    script = Markup(template_file("dataflow.js"))
    page = (
        templates()
        .get_template("dataflow.html")
        .render(
            title="A convolution, cycle by cycle",
            about=_about(simulation),
            story=_story(simulation),
            style=Markup(template_file("report.css") + template_file("dataflow.css")),
            script=script,
            policy=policy_for([script]),
        )
    )
    write_whole(Path(output), page)
    return Path(output)


def write_conv_charts(simulation: Simulation, output: str | Path) -> Path:
    """Utilisation over time and energy by level of one convolution."""
    check_conv_charts(simulation)
    energy = conv_accesses(simulation).energy(load_chip("eyeriss"))
    whole = {"mac": float(simulation.plan.shape.num_multiplications), **energy}
    charts = [utilisation_chart(simulation), energy_chart({simulation.plan.timing.model: whole})]
    return _write_charts(charts, "A convolution on an array of PEs", _about(simulation), output)


def write_network_charts(result: Mapping[str, Any], output: str | Path) -> Path:
    """Utilisation, time and energy of every layer of a network, and other dataflows."""
    about = (
        f"{result['network']}, batch {result['batch']}, on {result['chip_description']}; mappings chosen by "
        f"{result['objective']}."
    )
    return _write_charts(network_charts(result), "A network on a chip", about, output)


def _write_charts(charts: Sequence[Chart], title: str, about: str, output: str | Path) -> Path:
    plotly, plotly_script = packed_plotly()
    script = Markup(template_file("report.js"))
    page = (
        templates()
        .get_template("dataflow_charts.html")
        .render(
            title=title,
            about=about,
            charts=charts,
            chart_specs=compact([chart.spec for chart in charts]),
            style=Markup(template_file("report.css")),
            plotly=plotly,
            script=script,
            policy=policy_for([plotly_script, script]),
        )
    )
    write_whole(Path(output), page)
    return Path(output)


def _about(simulation: Simulation) -> str:
    return f"{'; '.join([*about(simulation), summary(simulation)])}."


def _story(simulation: Simulation) -> dict[str, Any]:
    """What the page's script plays."""
    plan, shape = simulation.plan, simulation.plan.shape
    return {
        "rows": plan.array[0],
        "columns": plan.array[1],
        "cycles": simulation.cycles,
        "busy": simulation.busy_pes.tolist(),
        "stride": shape.stride[1],
        "kernel_width": shape.kernel_width,
        "channels": shape.num_channels,
        "output_shape": [shape.num_images, shape.num_filters, shape.output_height, shape.output_width],
        "operations": OPERATIONS,
        "passes": [_pass(simulation, one) for one in plan.passes()],
        "events": [_compact_event(event) for event in events(simulation)],
    }


def _pass(simulation: Simulation, one: Pass) -> dict[str, Any]:
    """What each PE of a pass holds, by its place."""
    found = [
        {
            "place": list(held.place),
            "filter": [number_text(value) for lane in held.weights for value in lane],
            "input": [[number_text(value) for value in lane] for lane in held.pixels],
            "image": held.strip.image,
            "number": held.strip.filter,
            "filter_row": held.filter_row,
            "input_row": held.input_row,
            "output_row": held.output_row,
        }
        for held in holdings(simulation, one)
    ]
    return {"start": one.start_cycle, "whole_kernel": simulation.plan.is_serial, "pes": found}


def _compact_event(event: Event) -> list[Any]:
    """Positions as the script knows them, as long names would be most of the page; values as they are to be read.

    A script's numbers are floats: whole numbers of 64 bits would be rounded.
    """
    source = event.source or event.target
    return [
        event.cycle,
        max(event.last_cycle, event.cycle),
        *event.place,
        OPERATIONS.index(event.operation),
        *("" if value is None else number_text(value) for value in (event.left, event.right, event.result)),
        *event.output,
        event.tap,
        ("weight" in event.loads) + 2 * ("input" in event.loads),
        list(source) if source else None,
        int(event.is_complete),
    ]
