"""What each worker took from its machine while it ran: cores, memory, disk, network and GPU, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.report.chart import LEGEND_ABOVE, Chart, Choice, Figure, Table, new_figure
from paceline.report.curves import Result, thinned
from paceline.report.numbers import DASH, amount, byte_unit
from paceline.report.styles import worker_style

MAX_POINTS = 160  # of a line: one per quantity, worker and strategy adds up
# Key of the column: what it is called, and whether it is bytes.
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
PEAKS = {"cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes"}  # levels; the others are counts that only grow


def resources(results: Sequence[Result], initial: int) -> Chart | None:
    shown = [(index, r) for index, r in enumerate(results) if (r.get("resources") or {}).get("per_worker")]
    present = [key for key in QUANTITIES if any(_values(row, key) for _, r in shown for row in _rows(r))]
    if not present:
        return None
    views = [_figure(_rows(result), key) for _, result in shown for key in present]
    choices = [
        Choice("strategy", tuple(str(r["label"]) for _, r in shown), is_list=True),
        Choice("quantity", tuple(QUANTITIES[key][0] for key in present)),
    ]
    first = next((position for position, (index, _) in enumerate(shown) if index == initial), 0)
    heads = ["Strategy", "Worker", *(_head(key) for key in present)]
    rows = [
        [str(r["label"]), str(row["rank"]), *(_summary(row, key) for key in present)]
        for _, r in shown
        for row in _rows(r)
    ]
    caption = "A line per worker. 100 % of CPU is one core. Disk and network: all bytes since the run's start."
    title, table = "Resources over time, per worker", Table(heads, rows)
    return Chart(
        "resources-time",
        title,
        caption,
        views,
        table,
        is_wide=True,
        choices=choices,
        initial=first * len(present),
    )


def _figure(rows: Sequence[Mapping[str, Any]], key: str) -> Figure:
    name, is_bytes = QUANTITIES[key]
    largest = max((max(_values(row, key), default=0) for row in rows), default=0)
    unit, size = byte_unit(largest) if is_bytes else ("%", 1.0)
    figure = new_figure(showlegend=True, legend=LEGEND_ABOVE, hovermode="x unified", height=300)
    for row in rows:
        column = row.get(key) or []
        kept = thinned(column, MAX_POINTS)
        look = worker_style(row["rank"])
        figure.add(
            "scatter",
            x=[row["time_s"][i] for i in kept],
            y=[None if column[i] is None else column[i] / size for i in kept],
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            name=f"worker {row['rank']}",
            hovertemplate=f"%{{y:.3g}} {unit}",
        )
    figure.x_axis("seconds since the run's start", hoverformat=".2f", ticksuffix=" s")
    figure.y_axis(f"{name}, {unit}", rangemode="tozero")
    if not any(_values(row, key) for row in rows):
        note = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
        figure.layout["annotations"] = [{**note, "text": f"{name} was not measured in this run"}]
    return figure


def _rows(result: Result) -> Any:
    return result["resources"]["per_worker"]


def _values(row: Mapping[str, Any], key: str) -> list[float]:
    return [value for value in row.get(key) or [] if value is not None]


def _head(key: str) -> str:
    name, _ = QUANTITIES[key]
    return f"{name}, {'mean and most' if key in PEAKS else 'in all'}"


def _summary(row: Mapping[str, Any], key: str) -> str:
    values = _values(row, key)
    if not values:
        return DASH
    mean, _, is_bytes = sum(values) / len(values), *QUANTITIES[key]
    if key not in PEAKS:
        return amount(values[-1])
    return f"{amount(mean)}, {amount(max(values))}" if is_bytes else f"{mean:.0f} %, {max(values):.0f} %"
