"""Write an HTML page that animates a simulated convolution on an accelerator, cycle by cycle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from paceline.dataflow.pe_events import OPERATIONS, Event, count_events, events
from paceline.dataflow.placement import Pass
from paceline.dataflow.simulation_results import number_text, pe_contents
from paceline.dataflow.simulator import Simulation
from paceline.errors import UsageError
from paceline.present.html import policy_for, render_template, template_file, write_atomically
from paceline.present.studies.dataflow import about_conv
from paceline.results import Json

MAX_EVENTS = 50_000  # a page with this many events has a few megabytes and plays without delay
MAX_PES = 400


def check_animation(simulation: Simulation) -> None:
    """Raise UsageError if a simulation has too many events, cycles or processing elements (PEs) for an animation."""
    count, (rows, columns) = count_events(simulation), simulation.plan.array
    if max(count, simulation.cycles) > MAX_EVENTS or rows * columns > MAX_PES:
        raise UsageError(
            f"{count:,} events in {simulation.cycles:,} cycles on {rows} x {columns} PEs are too many for one page, "
            f"which shows up to {MAX_EVENTS:,} of each on {MAX_PES} PEs; use a part of the input, or --trace"
        )


def write_animation(simulation: Simulation, output: str | Path) -> Path:
    """Write the HTML page of a simulation atomically, and return its path."""
    check_animation(simulation)
    script = Markup(template_file("animation.js"))
    page = render_template(
        "animation.html",
        title="A convolution, cycle by cycle",
        about=about_conv(simulation),
        story=_story(simulation),
        style=Markup(template_file("report.css") + template_file("animation.css")),
        script=script,
        policy=policy_for([script]),
    )
    write_atomically(Path(output), page)
    return Path(output)


def _story(simulation: Simulation) -> Json:
    """Return a simulation as the JSON object that the script of the page animates."""
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


def _pass(simulation: Simulation, one: Pass) -> Json:
    """Return one pass (the work between two filter loads) as JSON: its start cycle, and the values in each PE."""
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
        for held in pe_contents(simulation, one)
    ]
    return {"start": one.start_cycle, "whole_kernel": simulation.plan.is_serial, "pes": found}


def _compact_event(event: Event) -> list[Any]:
    """Return an event as a list, which keeps the page small.

    Operands and results are text, because JavaScript would round 64-bit integers.
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
