"""Charts of the accelerator simulation: utilisation over time, energy by memory level, and the time of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.dataflow.chips import load_chip
from paceline.dataflow.simulation_results import conv_accesses
from paceline.dataflow.simulator import Simulation
from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.styles import PALETTE
from paceline.results.dataflow import NetworkCost

LEVELS = {
    "mac": "multiply-accumulate",
    "register_file": "register file",
    "neighbour": "neighbour PEs",
    "buffer": "global buffer",
    "dram": "DRAM",
}
ENERGY_HEADS = (*LEVELS.values(), "total")
ENERGY_CAPTION = "In units of the energy of one multiply-accumulate (MAC)."
CAUSES = {"filter_load": "loading filters", "window_load": "loading first inputs"}
MAX_POINTS = 500  # points of a line; in longer simulations, each point is the mean of several cycles


@chart("conv", order=10)
def utilisation(simulation: Simulation) -> Iterator[Chart]:
    """Draw the share of processing elements (PEs) that multiply or add, over cycles.

    A logical set has one PE for each pair of a kernel row and an output row (see dataflow/placement.py). 100 % is the
    size of a logical set times the number of sets side by side. This can be more or fewer PEs than the array has.
    """
    busy = simulation.busy_pes / simulation.plan.num_logical_pes
    stretch = -(-len(busy) // MAX_POINTS)
    cycles = list(range(1, len(busy) + 1, stretch))
    shares = [100 * float(busy[first - 1 : first - 1 + stretch].mean()) for first in cycles]
    figure = new_figure(height=320)
    figure.add(
        "scatter",
        x=cycles,
        y=shares,
        mode="lines",
        line={"color": PALETTE[0], "width": 2, "shape": "hv"},
        fill="tozeroy",
        hovertemplate="from cycle %{x}: %{y:.1f} %<extra></extra>",
    )
    figure.x_axis("cycle")
    figure.y_axis("% of the logical set", range=[0, 105])
    rows = [[str(first), f"{share:.1f}"] for first, share in zip(cycles, shares, strict=True)]
    rows_of_pes, columns_of_pes = simulation.plan.array
    caption = (
        f"PEs that multiply or add, of {simulation.plan.num_logical_pes} in the logical set; the array has "
        f"{rows_of_pes} x {columns_of_pes}" + (f". Each value is the mean of {stretch} cycles." if stretch > 1 else ".")
    )
    values = Values(["Cycle", "%"], rows)
    yield Chart("utilisation", "Utilisation over time", caption, [figure], values, is_wide=True)


@chart("conv", order=20)
def conv_energy(simulation: Simulation) -> Iterator[Chart]:
    """Draw the energy of a convolution by memory level, computed with the energies per access of the chip `eyeriss`."""
    energy = conv_accesses(simulation).energy(load_chip("eyeriss"))
    whole = {"mac": float(simulation.plan.shape.num_multiplications), **energy}
    yield energy_chart({simulation.plan.timing.model: whole})


def energy_chart(energies: Mapping[str, Mapping[str, float]], *, name: str = "energy", title: str = "") -> Chart:
    """Draw a stacked bar for each key of `energies`, with the energy of each memory level."""
    table = Values(["", *ENERGY_HEADS], [[label, *_energy_cells(energy)] for label, energy in energies.items()])
    title = title or "Energy by level"
    return Chart(name, title, ENERGY_CAPTION, [_stacked(energies, LEVELS)], table, is_wide=True)


def _energy_cells(energy: Mapping[str, float]) -> list[str]:
    return [*(_short(energy[level]) for level in LEVELS), _short(sum(energy[level] for level in LEVELS))]


@chart("network", order=30)
def network_energy(result: NetworkCost) -> Iterator[Chart]:
    layers, title = result.layers, "Energy per MAC by level"
    if result.total.energy_by_dataflow is None:
        yield energy_chart({row.name: row.energy.by_level(per=row.macs) for row in layers}, title=title)
        return
    views = {
        name: {row.name: (row.energy_by_dataflow or {})[name].by_level(per=row.macs) for row in layers}
        for name in result.total.energy_by_dataflow
    }
    rows = [[layer, name, *_energy_cells(view[layer])] for name, view in views.items() for layer in view]
    yield Chart(
        "energy",
        title,
        ENERGY_CAPTION,
        [_stacked(view, LEVELS) for view in views.values()],
        Values(["Layer", "Dataflow", *ENERGY_HEADS], rows),
        is_wide=True,
        choices=[Choice("dataflow", tuple(views))],
    )
    totals = result.total.energy_by_dataflow
    yield energy_chart(
        {name: energy.by_level(per=result.total.macs) for name, energy in totals.items()},
        name="dataflows",
        title="Energy per MAC of all layers, by dataflow",
    )


@chart("network", order=10)
def layer_utilisation(result: NetworkCost) -> Iterator[Chart]:
    layers = result.layers
    figure = new_figure(barmode="overlay", showlegend=True, legend=LEGEND_ABOVE, height=320)
    names = [plotly_text(row.name) for row in layers]
    series = {
        "PEs with work": [100 * row.active_pes / row.pes for row in layers],
        "MACs per PE and cycle": [100 * row.utilisation for row in layers],
    }
    for (label, values), colour in zip(series.items(), ("#A0A8B2", PALETTE[0]), strict=True):
        figure.add("bar", x=names, y=values, name=label, marker={"color": colour}, hovertemplate="%{y:.1f} %")
    figure.x_axis(type="category")
    figure.y_axis("% of the array", range=[0, 105])
    rows = [[row.name, *(f"{values[index]:.1f}" for values in series.values())] for index, row in enumerate(layers)]
    caption = "The difference between the two bars is time for loading, remainders and waiting."
    yield Chart("layer-utilisation", "Utilisation by layer", caption, [figure], Values(["Layer", *series], rows))


@chart("network", order=20)
def layer_times(result: NetworkCost) -> Iterator[Chart]:
    """Draw the time of each layer as a stacked bar.

    The parts are multiplying, loads that do not overlap with multiplications, and waiting for the buffer or DRAM.
    """
    parts = {"compute": "multiplying", **CAUSES, "buffer": "waiting for the buffer", "dram": "waiting for DRAM"}
    times = {}
    for row in result.layers:
        causes = row.cycles_by_cause
        scale = 1e3 * row.processing_s / row.cycles
        own = {cause: causes[cause] * scale for cause in ("compute", *CAUSES)}
        waits = {
            "buffer": 1e3 * row.processing_s - sum(own.values()),
            "dram": 1e3 * (row.time_s - row.processing_s),
        }
        times[row.name] = own | waits
    figure = _stacked(times, parts)
    figure.y_axis("ms")
    rows = [[name, *(f"{part:.4g}" for part in values.values())] for name, values in times.items()]
    caption = "Transfers that overlap with multiplications are not counted."
    yield Chart("layer-times", "Time by layer", caption, [figure], Values(["Layer", *parts.values()], rows))


def _stacked(bars: Mapping[str, Mapping[str, float]], parts: Mapping[str, str]) -> PlotlyFigure:
    figure = new_figure(barmode="stack", showlegend=True, legend=LEGEND_ABOVE, height=340)
    for (key, label), colour in zip(parts.items(), PALETTE, strict=False):
        values = [bar[key] for bar in bars.values()]
        figure.add(
            "bar",
            x=[plotly_text(name) for name in bars],
            y=values,
            name=label,
            marker={"color": colour},
            hovertemplate="%{y:.4g}",
        )
    figure.y_axis("energy")
    figure.x_axis(type="category")
    return figure


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
