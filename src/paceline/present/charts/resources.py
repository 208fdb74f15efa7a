"""Charts of the resources of each worker over time: CPU, memory, disk, network and GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure
from paceline.present.charts.registry import Rows, chart
from paceline.present.charts.shared_figures import thinned
from paceline.present.numbers import DASH, amount, byte_unit
from paceline.present.styles import worker_style
from paceline.results import WorkerResources

MAX_POINTS = 160  # points of a line; there is a line for each quantity, worker and strategy
# For each field of WorkerResources: name of the quantity, and whether its unit is bytes.
QUANTITIES = {
    "cpu_percent": ("CPU", False),
    "rss_bytes": ("memory", True),
    "disk_read_bytes": ("disk read", True),
    "disk_written_bytes": ("disk written", True),
    "network_sent_bytes": ("network sent", True),
    "network_received_bytes": ("network received", True),
    "gpu_percent": ("GPU", False),
    "gpu_memory_bytes": ("GPU memory", True),
}
PEAKS = {"cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes"}  # current values; others are cumulative


@chart("resources", order=10)
def resources(content: Rows) -> Iterator[Chart | str]:
    shown = [(index, r, r.resources.per_worker) for index, r in enumerate(content.rows) if r.resources is not None]
    present = [key for key in QUANTITIES if any(_values(row, key) for _, _, rows in shown for row in rows)]
    if not present:
        yield "No resources over time: workers were not sampled in these runs (an earlier version, or --sample-hz 0)."
        return
    views = [_figure(workers, key) for _, _, workers in shown for key in present]
    choices = [
        Choice("strategy", tuple(r.label for _, r, _ in shown), is_list=True),
        Choice("quantity", tuple(QUANTITIES[key][0] for key in present)),
    ]
    first = next((position for position, (index, _, _) in enumerate(shown) if index == content.first), 0)
    heads = ["Strategy", "Worker", *(_head(key) for key in present)]
    rows = [
        [r.label, str(row.rank), *(_summary(row, key) for key in present)] for _, r, workers in shown for row in workers
    ]
    caption = "A line per worker. 100 % of CPU is one core. Disk and network: cumulative bytes since the run started."
    title, table = "Resources over time, per worker", Values(heads, rows)
    yield Chart(
        "resources-time",
        title,
        caption,
        views,
        table,
        is_wide=True,
        choices=choices,
        initial=first * len(present),
    )


def _figure(rows: Sequence[WorkerResources], key: str) -> PlotlyFigure:
    name, is_bytes = QUANTITIES[key]
    largest = max((max(_values(row, key), default=0) for row in rows), default=0)
    unit, size = byte_unit(largest) if is_bytes else ("%", 1.0)
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, hovermode="x unified", height=300)
    for row in rows:
        column = _column(row, key)
        positions = thinned(column, MAX_POINTS)
        style = worker_style(row.rank)
        figure.add(
            "scatter",
            x=[row.time_s[i] for i in positions],
            y=[None if (value := column[i]) is None else value / size for i in positions],
            mode="lines",
            line={"color": style.colour, "dash": style.dash, "width": 2},
            name=f"worker {row.rank}",
            hovertemplate=f"%{{y:.3g}} {unit}",
        )
    figure.x_axis("seconds since the run started", hoverformat=".2f", ticksuffix=" s")
    figure.y_axis(f"{name}, {unit}", rangemode="tozero")
    if not any(_values(row, key) for row in rows):
        note = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
        figure.layout["annotations"] = [{**note, "text": f"{name} was not measured in this run"}]
    return figure


def _column(row: WorkerResources, key: str) -> list[float | None]:
    return getattr(row, key) or []


def _values(row: WorkerResources, key: str) -> list[float]:
    return [value for value in _column(row, key) if value is not None]


def _head(key: str) -> str:
    name, _ = QUANTITIES[key]
    return f"{name}, {'mean and maximum' if key in PEAKS else 'total'}"


def _summary(row: WorkerResources, key: str) -> str:
    values = _values(row, key)
    if not values:
        return DASH
    mean, _, is_bytes = sum(values) / len(values), *QUANTITIES[key]
    if key not in PEAKS:
        return amount(values[-1])
    return f"{amount(mean)}, {amount(max(values))}" if is_bytes else f"{mean:.0f} %, {max(values):.0f} %"
