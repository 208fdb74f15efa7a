"""Bars for every strategy and rank, strategies next to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from paceline.present.chart import PlotlyFigure, Values, label_of, new_figure, shortened
from paceline.present.rows import ShownRow
from paceline.present.styles import styles
from paceline.results import WorkerNetwork, WorkerResult

W = TypeVar("W", bound=WorkerResult | WorkerNetwork)

FILLS = ("", "/", ".")  # of the first, second and third quantity: solid, hatched, dotted


def bars_per_worker(
    results: Sequence[ShownRow],
    rows_of: Callable[[ShownRow], Sequence[W]],
    keys: Mapping[str, str],
    text: Callable[[Any], str],
    *,
    scale: float = 1.0,
) -> PlotlyFigure:
    """One bar per quantity and rank; `keys` gives the field of each quantity by its name."""
    figure = new_figure(barmode="overlay")
    room = 0.8 / len(keys)
    first, middles = 0, []
    for index, (result, look) in enumerate(zip(results, styles([row.strategy for row in results]), strict=True)):
        rows = rows_of(result)
        middles.append(first + (len(rows) - 1) / 2)
        for number, (what, key) in enumerate(keys.items()):
            offset = (number - (len(keys) - 1) / 2) * room
            figure.add(
                "bar",
                x=[first + position + offset for position in range(len(rows))],
                y=[_scaled(getattr(row, key), scale) for row in rows],
                width=room * 0.95,
                marker={
                    "color": look.colour,
                    "pattern": {"shape": FILLS[number], "size": 5, "fillmode": "replace"},
                },
                customdata=[[row.rank, text(getattr(row, key))] for row in rows],
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


def values_of(
    results: Sequence[ShownRow],
    rows_of: Callable[[ShownRow], Sequence[W]],
    keys: Mapping[str, str],
    text: Callable[[Any], str],
) -> Values:
    rows = []
    for result in results:
        for worker in rows_of(result):
            rows.append([result.label, str(worker.rank), *(text(getattr(worker, key)) for key in keys.values())])
    return Values(["Strategy", "Worker", *keys], rows)


def workers_of(row: ShownRow) -> list[WorkerResult]:
    return row.per_worker


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale
