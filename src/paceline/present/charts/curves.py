"""Lines over a run, one per strategy: thinned to what a chart can show, striped where they are equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.present.chart import PlotlyFigure, Values, label_of, new_figure
from paceline.present.rows import ShownRow
from paceline.present.styles import styles

MAX_POINTS = 400  # of a line on the page, however long the run
TABLE_POINTS = 12  # of a line in the table beside its chart
STRIPE = 10  # pixels of each colour where curves are equal


def thinned(values: Sequence[Any], limit: int = MAX_POINTS) -> list[int]:
    """Return evenly spread positions, including the first and the last."""
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
    """One line per result that has both columns; hovering shows all of them where they share their steps."""
    figure = new_figure(hovermode="x unified" if x == "step" else "closest")
    looks = styles([row.strategy for row in results])
    dashes = [look.dash for look in looks]
    if has_stripes:
        dashes = _stripes([getattr(result.curve, y) for result in results], dashes)
    for index, (result, look) in enumerate(zip(results, looks, strict=True)):
        across, up = getattr(result.curve, x), getattr(result.curve, y)
        if not across or all(value is None for value in up):
            continue
        kept = thinned(across)
        figure.add(
            "scatter",
            x=_scaled([across[i] for i in kept], x_scale),
            y=_scaled([up[i] for i in kept], y_scale),
            mode="lines" if len(kept) > 1 else "markers",
            line={"color": look.colour, "width": 2, "dash": dashes[index]},
            marker={"color": look.colour, "symbol": look.symbol},
            name=label_of(result),
            hovertemplate=hover,
            meta=index,
            legendgroup=str(index),
            showlegend=not dashes[index].endswith("px"),
        )
        if dashes[index].endswith("px"):  # a striped line's own dash may not show in a legend at all
            line = {"color": look.colour, "width": 2, "dash": look.dash}
            name = label_of(result)
            figure.add("scatter", x=[None], y=[None], mode="lines", line=line, name=name, legendgroup=str(index))
    return figure


def values_of(results: Sequence[ShownRow], columns: Mapping[str, tuple[str, Any]]) -> Values:
    """A few points of each line; `columns` gives each column's head and how its values are written."""
    rows = []
    for result in results:
        curve = result.curve
        for position in thinned(curve.step, TABLE_POINTS):
            cells = [
                text(values[position] if (values := getattr(curve, key)) else None)
                for key, (_, text) in columns.items()
            ]
            rows.append([result.label, *cells])
    return Values(["Strategy", *(head for head, _ in columns.values())], rows)


def _scaled(values: Sequence[Any], scale: float) -> list[Any]:
    return list(values) if scale == 1 else [None if value is None else value * scale for value in values]


def _stripes(curves: Sequence[Sequence[float | None]], dashes: Sequence[str]) -> list[str]:
    """Alternating dashes for equal curves, so that the colour of every strategy is visible."""
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
    """Whether two curves differ by less than a chart can show."""
    return len(ours) == len(theirs) and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=0.01))
        for a, b in zip(ours, theirs, strict=True)
    )
