"""Pages of the accelerator: a convolution that plays cycle by cycle, and charts of utilisation and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from paceline.dataflow.array import PEArray
from paceline.dataflow.chips import load_chip
from paceline.dataflow.counting import conv_accesses
from paceline.dataflow.events import Event, count_events, events
from paceline.dataflow.plan import Pass
from paceline.dataflow.simulate import Simulation
from paceline.dataflow.timing import MODELS
from paceline.errors import UsageError
from paceline.report.chart import Chart, compact
from paceline.report.dataflow_charts import energy_chart, network_charts, utilisation_chart
from paceline.report.html import packed_plotly, policy_for, template_file, templates, write_whole

MAX_EVENTS = 50_000  # a page of a few megabytes that a browser still steps through at once
MAX_PES = 400
OPERATIONS = ("multiply", "add", "sum", "send")


def write_animation(simulation: Simulation, output: str | Path) -> Path:
    """A page that plays every cycle, whole or not at all."""
    count, (rows, columns) = count_events(simulation), simulation.plan.array
    if count > MAX_EVENTS or rows * columns > MAX_PES:
        raise UsageError(
            f"{count:,} events on {rows} x {columns} PEs are too many for one page, which shows up to {MAX_EVENTS:,} "
            f"on {MAX_PES}; take a part of the input, or write a --trace"
        )
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
    energy = conv_accesses(simulation).energy(load_chip("eyeriss"))
    whole = {"mac": float(simulation.plan.shape.num_multiplications), **energy}
    charts = [utilisation_chart(simulation), energy_chart({simulation.plan.timing.model: whole})]
    return _write_charts(charts, "A convolution on an array of PEs", _about(simulation), output)


def write_network_charts(result: Mapping[str, Any], output: str | Path) -> Path:
    """Utilisation, time and energy of every layer of a network, and other dataflows."""
    about = f"{result['network']}, batch {result['batch']}, on {result['chip_description']}."
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
    plan, shape = simulation.plan, simulation.plan.shape
    return (
        f"{plan.timing.model}: {MODELS[plan.timing.model]}. A logical set of {shape.kernel_height} x "
        f"{shape.output_height} PEs on an array of {plan.array[0]} x {plan.array[1]}; {simulation.cycles:,} cycles, "
        f"utilisation {simulation.utilisation:.1%} of the set."
    )


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
        "output_shape": [shape.num_images, shape.num_filters, shape.output_height, shape.output_width],
        "passes": [_holdings(simulation, one) for one in plan.passes()],
        "events": [_compact_event(event) for event in events(simulation)],
    }


def _holdings(simulation: Simulation, one: Pass) -> dict[str, Any]:
    """What each PE of a pass holds, by its place."""
    pes = PEArray(simulation.plan, one, simulation.operands.images, simulation.operands.filters)
    shape = simulation.plan.shape
    found = []
    for index, strip in enumerate(one.strips):
        for row in range(pes.filters.shape[1]):
            for column in range(strip.num_columns):
                kernel_row = one.kernel_rows[row]
                found.append(
                    {
                        "place": [strip.array_row + row, strip.array_column + column],
                        "filter": pes.filters[index, row].ravel().tolist(),
                        "input": pes.inputs[index, row, column].tolist(),
                        "filter_row": kernel_row,
                        "input_row": (strip.first_row + column) * shape.stride[0] + kernel_row,
                        "output": [strip.image, strip.filter, strip.first_row + column],
                    }
                )
    return {"start": one.start_cycle, "whole_kernel": simulation.plan.is_serial, "pes": found}


def _compact_event(event: Event) -> list[Any]:
    """Positions as the script knows them: long names would be most of the page."""
    source = event.source or event.target
    return [
        event.cycle,
        max(event.last_cycle, event.cycle),
        *event.place,
        OPERATIONS.index(event.operation),
        event.left,
        event.right,
        event.result,
        *event.output,
        event.tap,
        ("weight" in event.loads) + 2 * ("input" in event.loads),
        list(source) if source else None,
        int(event.is_complete),
    ]
