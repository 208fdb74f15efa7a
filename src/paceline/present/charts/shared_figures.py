"""Figures that several charts share: curves over a run, bars per worker, and rows of horizontal bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.present.chart import PlotlyFigure, Values, label_of, new_figure, short_label_of, wrapped_label_of
from paceline.present.rows import ShownRow
from paceline.present.styles import styles_of
from paceline.results import WorkerNetwork, WorkerResult
from paceline.results.value import Json

MAX_POINTS = 400  # points of a line on the page, however long the run
TABLE_POINTS = 12  # points of a line in the table below its chart
STRIPE = 10  # length in pixels of each colour of a striped line
FILLS = ("", "/", ".")  # bars of the first, second and third quantity: solid, hatched, dotted

Workers = Sequence[WorkerResult | WorkerNetwork]


def thinned(values: Sequence[Any], limit: int = MAX_POINTS) -> list[int]:
    """Return at most `limit` evenly spread indices of a list, including the first and the last."""
    if len(values) <= limit:
        return list(range(len(values)))
    return [round(index * (len(values) - 1) / (limit - 1)) for index in range(limit)]


def lines(
    results: Sequence[ShownRow],
    x: str,
    y: str,
    hover: str,
    *,
    has_stripes: bool = False,
    x_scale: float = 1.0,
    y_scale: float = 1.0,
) -> PlotlyFigure:
    """Draw a line for each result whose curve has the columns `x` and `y`.

    With `has_stripes`, curves that look equal share one line, striped in the colours of their strategies. If `x` is the
    step, hovering shows the values of all lines at that step.
    """
    figure = new_figure(hovermode="x unified" if x == "step" else "closest")
    styles = styles_of(results)
    dashes = [style.dash for style in styles]
    if has_stripes:
        dashes = _stripes([getattr(result.curve, y) for result in results], dashes)
    for index, (result, style, dash) in enumerate(zip(results, styles, dashes, strict=True)):
        across, up = getattr(result.curve, x), getattr(result.curve, y)
        if not across or all(value is None for value in up):
            continue
        positions = thinned(across)
        name, group, is_striped = label_of(result), str(index), dash.endswith("px")
        figure.add(
            "scatter",
            x=[scaled(across[i], x_scale) for i in positions],
            y=[scaled(up[i], y_scale) for i in positions],
            mode="lines" if len(positions) > 1 else "markers",
            line={"color": style.colour, "width": 2, "dash": dash},
            marker={"color": style.colour, "symbol": style.symbol},
            name=name,
            hovertemplate=hover,
            meta=index,
            legendgroup=group,
            showlegend=not is_striped,
        )
        if is_striped:  # a striped line may show no dash in its short legend entry
            line = {"color": style.colour, "width": 2, "dash": style.dash}
            figure.add("scatter", x=[None], y=[None], mode="lines", line=line, name=name, legendgroup=group)
    return figure


def line_values(results: Sequence[ShownRow], columns: Mapping[str, tuple[str, Any]]) -> Values:
    """Return a table with a few points of the curve of each result.

    `columns` maps a column of the curve to its heading and its formatter.
    """
    rows = []
    for result in results:
        curve = result.curve
        for position in thinned(curve.step, TABLE_POINTS):
            cells = [
                text(values[position] if (values := getattr(curve, key)) else None)
                for key, (_, text) in columns.items()
            ]
            rows.append([result.label, *cells])
    return Values(["Strategy", *(heading for heading, _ in columns.values())], rows)


def bars_per_worker(
    results: Sequence[ShownRow],
    fields: Mapping[str, str],
    text: Callable[[Any], str],
    *,
    workers_of: Callable[[ShownRow], Workers] = lambda row: row.per_worker,
    scale: float = 1.0,
) -> PlotlyFigure:
    """Draw a bar for each worker and quantity, with the workers of a strategy next to each other.

    `fields` maps the name of each quantity to the name of its field in a worker's result.
    """
    figure = new_figure(barmode="overlay")
    room = 0.8 / len(fields)
    first, middles = 0, []
    for index, (result, style) in enumerate(zip(results, styles_of(results), strict=True)):
        workers = workers_of(result)
        middles.append(first + (len(workers) - 1) / 2)
        for number, (quantity, key) in enumerate(fields.items()):
            offset = (number - (len(fields) - 1) / 2) * room
            figure.add(
                "bar",
                x=[first + position + offset for position in range(len(workers))],
                y=[scaled(getattr(worker, key), scale) for worker in workers],
                width=room * 0.95,
                marker={
                    "color": style.colour,
                    "pattern": {"shape": FILLS[number], "size": 5, "fillmode": "replace"},
                },
                customdata=[[worker.rank, text(getattr(worker, key))] for worker in workers],
                hovertemplate=f"<b>{label_of(result)}</b>, worker %{{customdata[0]}}<br>{quantity} %{{customdata[1]}}"
                "<extra></extra>",
                name=label_of(result),
                meta=index,
                legendgroup=str(index),
                showlegend=number == 0,
            )
        first += len(workers) + 1
    # Labels are slanted if they do not fit, and end at their bars, so that the last label stays inside the chart.
    figure.x_axis(tickvals=middles, ticktext=[short_label_of(result) for result in results], showgrid=False, ticks="")
    figure.x_axis(autotickangles=[0, -40, -90], ticklabeloverflow="allow")
    return figure


def worker_values(results: Sequence[ShownRow], fields: Mapping[str, str], text: Callable[[Any], str]) -> Values:
    """Return a table of the values that `bars_per_worker` draws, with a row for each worker."""
    rows = [
        [result.label, str(worker.rank), *(text(getattr(worker, key)) for key in fields.values())]
        for result in results
        for worker in result.per_worker
    ]
    return Values(["Strategy", "Worker", *(quantity.capitalize() for quantity in fields)], rows)


def row_height_of(results: Sequence[ShownRow]) -> int:
    """Return the height in pixels of each row of a chart with horizontal bars, enough for the longest label."""
    return max(38, 8 + 17 * max(wrapped_label_of(result).count("<br>") + 1 for result in results))


def label_rows(figure: PlotlyFigure, results: Sequence[ShownRow], row_height: int) -> None:
    """Set the height and vertical axis of a chart with horizontal bars: a row for each strategy, the first on top."""
    figure.layout.update({"height": 84 + row_height * len(results), "bargap": 0.3})
    figure.layout["margin"] = {**figure.layout["margin"], "r": 70}
    figure.y_axis(tickvals=list(range(len(results))), ticktext=[wrapped_label_of(result) for result in results])
    figure.y_axis(range=[len(results) - 0.45, -0.55], showgrid=False, ticks="")


def write_after_bar(figure: PlotlyFigure, x: float, row: int, text: str, index: int) -> None:
    """Write a text to the right of the horizontal bar that ends at `x` in row `row`."""
    figure.add(
        "scatter",
        x=[x],
        y=[row],
        mode="text",
        text=[f"  {text}"],
        textposition="middle right",
        hoverinfo="skip",
        cliponaxis=False,
        meta=index,
        showlegend=False,
    )


def whiskers(points: Sequence[tuple[float, Sequence[float] | None]], *, floor: float = 0.0) -> Json:
    """Return plotly error bars for pairs of a value and its interval. Lower bounds are raised to at least `floor`.

    A value can lie outside its interval, because the value may be the median of repeats, and the interval is that of
    their average. A value above its interval has no upper error bar, and a value below its interval has no lower one.
    """
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1.6,
        "width": 5,
        "array": [max(bounds[1] - value, 0.0) if bounds else 0.0 for value, bounds in points],
        "arrayminus": [max(value - max(bounds[0], floor), 0.0) if bounds else 0.0 for value, bounds in points],
    }


def scaled(value: float | None, scale: float) -> float | None:
    """Return the value times the scale. With a scale of 1, an integer stays an integer; None stays None."""
    return value if value is None or scale == 1 else value * scale


def _stripes(curves: Sequence[Sequence[float | None]], dashes: Sequence[str]) -> list[str]:
    """Return the dash style of each line: its style in `dashes`, or stripes if the line looks equal to other lines.

    Lines that look equal get alternating dashes of `STRIPE` pixels, so that all their colours are visible.
    """
    groups: list[list[int]] = []
    for index, curve in enumerate(curves):
        group = next((group for group in groups if _is_same(curves[group[0]], curve)), None)
        groups.append([index]) if group is None else group.append(index)
    dashes = list(dashes)
    for group in groups:
        for turn, index in enumerate(group if len(group) > 1 else []):
            lengths = (0, turn * STRIPE, STRIPE, (len(group) - 1 - turn) * STRIPE)
            dashes[index] = ",".join(f"{length}px" for length in lengths)
    return dashes


def _is_same(ours: Sequence[float | None], theirs: Sequence[float | None]) -> bool:
    """Return whether the values of two curves differ by at most 1 %, so that the curves look equal in a chart."""
    return len(ours) == len(theirs) and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=0.01))
        for a, b in zip(ours, theirs, strict=True)
    )
