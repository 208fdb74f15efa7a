"""Chart of a reproduced experiment: published numbers next to the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.present.chart import LEGEND_ABOVE, Chart, Choice, PlotlyFigure, Values, new_figure, plotly_text
from paceline.present.charts.registry import chart
from paceline.present.numbers import DASH
from paceline.present.styles import PALETTE, REFERENCES
from paceline.results import Json
from paceline.results.study import FigureValue, MeasuredFigure, PublishedColumn, Reproduction

ROW_HEIGHT = 44
Pair = tuple[str, str, float, MeasuredFigure]  # row, source, published, measured


def heading(quantity: PublishedColumn) -> str:
    """Return the column heading of a quantity, with its unit unless the unit is % or x (a ratio). Bytes become kB."""
    unit = {"bytes": "kB", "x": ""}.get(quantity.unit, quantity.unit)
    return f"{quantity.name}, {unit}" if unit and unit != "%" else quantity.name


def figure_text(value: FigureValue, unit: str) -> str:
    """Format a published or measured value for a column.

    The value is a number, a list of numbers by rank, a text, or None (unknown). The unit % follows the number. Other
    units are left out, because they are in the heading of the column.
    """
    if isinstance(value, str):
        return value.removesuffix(f" {unit}") if unit == "s" else value
    if isinstance(value, Sequence):
        return " / ".join(figure_text(item, unit).removesuffix(" %") for item in value) + (" %" if unit == "%" else "")
    if value is None:
        return DASH
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return f"{value / 1e3:,.1f}"
    if unit == "steps":
        return f"{value:g}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"


@chart("published", order=10)
def published_bars(study: Reproduction) -> Iterator[Chart]:
    """Draw published and measured numbers as bars. The reader of the page chooses the quantity.

    Quantities without a published or without a measured number are left out.
    """
    shown = [name for name in study.quantities if _pairs(study, name)]
    if not shown:
        return
    views = [_figure(study, name) for name in shown]
    titles = [heading(study.quantities[name]) for name in shown]
    rows = [
        [title, row, source, figure_text(theirs, _unit(study, name)), _text(study, name, ours)]
        for name, title in zip(shown, titles, strict=True)
        for row, source, theirs, ours in _pairs(study, name)
    ]
    table = Values(["Quantity", "Row, as published", "Published in", "Published", "Measured here"], rows)
    choices = [Choice("published quantity", tuple(titles))] if len(shown) > 1 else []
    caption = (
        "Hatched grey: published, measured on the authors' machines. Solid: measured here; pale: extrapolated from a "
        "subset of the steps."
    )
    yield Chart("published-bars", "Published and measured", caption, views, table, is_wide=True, choices=choices)


def _pairs(study: Reproduction, name: str) -> list[Pair]:
    """Return (row, source, published, measured) for each row in which quantity `name` was published and measured."""
    ours = {row.key: row.figures for row in study.ours}
    found = []
    for table in study.published:
        for row in table.rows:
            theirs, own = row.published.get(name), ours.get(row.ours or "", {}).get(name)
            if isinstance(theirs, int | float) and own is not None and isinstance(own.value, int | float):
                found.append((row.name, table.source, float(theirs), own))
    return found


def _figure(study: Reproduction, name: str) -> PlotlyFigure:
    pairs = _pairs(study, name)
    figure = new_figure(barmode="overlay", showlegend=True, legend=LEGEND_ABOVE, height=96 + ROW_HEIGHT * len(pairs))
    several = len({source for _, source, _, _ in pairs}) > 1
    labels = [f"{row} ({source.rpartition(', ')[2]})" if several else row for row, source, _, _ in pairs]
    scale = 100 if _unit(study, name) == "%" else 1
    hatched = {"color": REFERENCES["none"], "pattern": {"shape": "/", "size": 5, "fillmode": "replace"}}
    solid = [PALETTE[0] if not ours.is_extrapolated else PALETTE[5] for _, _, _, ours in pairs]
    series: list[tuple[str, list[float], Json, float]] = [
        ("published", [theirs for _, _, theirs, _ in pairs], hatched, -0.19),
        (
            "measured here",
            [float(ours.value) for _, _, _, ours in pairs if isinstance(ours.value, int | float)],
            {"color": solid},
            0.19,
        ),
    ]
    for what, values, marker, offset in series:
        figure.add(
            "bar",
            x=[value * scale for value in values],
            y=[place + offset for place in range(len(pairs))],
            width=0.34,
            orientation="h",
            marker=marker,
            name=what,
            text=[_bar_text(study, name, pair, what) for pair in pairs],
            textposition="outside",
            cliponaxis=False,
            hovertemplate=f"{what}: %{{text}}<extra></extra>",
        )
    figure.layout["margin"] = {**figure.layout["margin"], "r": 110}
    figure.y_axis(tickvals=list(range(len(pairs))), ticktext=[_wrapped(label) for label in labels])
    figure.y_axis(range=[len(pairs) - 0.4, -0.6], showgrid=False, ticks="")
    figure.x_axis(heading(study.quantities[name]) + (", %" if scale == 100 else ""), rangemode="tozero")
    return figure


def _bar_text(study: Reproduction, name: str, pair: Pair, what: str) -> str:
    if what == "published":
        return figure_text(pair[2], _unit(study, name))
    return _text(study, name, pair[3])


def _wrapped(label: str) -> str:
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > 30:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(plotly_text(line) for line in lines)


def _unit(study: Reproduction, name: str) -> str:
    return study.quantities[name].unit


def _text(study: Reproduction, name: str, figure: MeasuredFigure | None) -> str:
    if figure is None:
        return DASH
    words = figure_text(figure.value, _unit(study, name))
    return f"{words} (extrapolated)" if figure.is_extrapolated else words
