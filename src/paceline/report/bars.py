"""Bars for every strategy and rank, strategies next to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.report.chart import Figure, Table, label_of, new_figure, shortened
from paceline.report.styles import styles

Result = Mapping[str, Any]
Rows = Callable[[Result], Sequence[Mapping[str, Any]]]

FILLS = ("", "/", ".")  # of the first, second and third quantity: solid, hatched, dotted


def bars_per_worker(
    results: Sequence[Result],
    rows_of: Rows,
    keys: Mapping[str, str],
    text: Callable[[Any], str],
    *,
    scale: float = 1.0,
) -> Figure:
    """One bar per quantity and rank; `keys` gives the key of each quantity in a worker's row by its name."""
    figure = new_figure(barmode="overlay")
    room = 0.8 / len(keys)
    first, middles = 0, []
    for index, (result, look) in enumerate(zip(results, styles(results), strict=True)):
        rows = rows_of(result)
        middles.append(first + (len(rows) - 1) / 2)
        for number, (what, key) in enumerate(keys.items()):
            offset = (number - (len(keys) - 1) / 2) * room
            figure.add(
                "bar",
                x=[first + position + offset for position in range(len(rows))],
                y=[None if row[key] is None else row[key] * scale for row in rows],
                width=room * 0.95,
                marker={
                    "color": look.colour,
                    "pattern": {"shape": FILLS[number], "size": 5, "fillmode": "replace"},
                },
                customdata=[[row["rank"], text(row[key])] for row in rows],
                hovertemplate=f"<b>{label_of(result)}</b>, worker %{{customdata[0]}}<br>{what} %{{customdata[1]}}"
                "<extra></extra>",
                name=label_of(result),
                meta=index,
                legendgroup=str(index),
                showlegend=number == 0,
            )
        first += len(rows) + 1
    # Slanted labels end at their bars, so that the last one stays inside the chart.
    figure.x_axis(tickvals=middles, ticktext=[shortened(result) for result in results], showgrid=False, ticks="")
    figure.x_axis(autotickangles=[0, -40, -90], ticklabeloverflow="allow")
    return figure


def table_of(results: Sequence[Result], rows_of: Rows, keys: Mapping[str, str], text: Callable[[Any], str]) -> Table:
    rows = [
        [str(result["label"]), str(row["rank"]), *(text(row[key]) for key in keys.values())]
        for result in results
        for row in rows_of(result)
    ]
    return Table(["Strategy", "Worker", *keys], rows)
