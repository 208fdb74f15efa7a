"""How figures are drawn: one colour per strategy, labels as plain text, lines and bars that can be told apart."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

Result = Mapping[str, Any]

# Okabe and Ito's colours, told apart with any kind of colour vision; their yellow and black, unreadable on white or
# on black, are replaced. The two references without synchronisation are greys.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5FB5", "#8C6D31")
REFERENCES = {"one-worker": "#6B7683", "none": "#A0A8B2"}
STRIPE = 10  # pixels of each colour where curves lie on one another
TICK_WIDTH = 16  # characters of a label per line
TICK_LENGTH = 22  # characters of a label below a bar, where it may be slanted


def colours(results: Sequence[Result]) -> list[str]:
    """One per result, in order."""
    hues = iter(PALETTE * (len(results) // len(PALETTE) + 1))
    return [REFERENCES.get(result["strategy"]) or next(hues) for result in results]


def new_figure() -> go.Figure:
    """Without plotly's template: the page's theme decides."""
    figure = go.Figure(layout={"template": "none", "showlegend": False, "height": 340, "hovermode": "x unified"})
    figure.update_layout(margin={"l": 10, "r": 14, "t": 12, "b": 10})
    figure.update_xaxes(automargin=True, zeroline=False, title_standoff=10)
    figure.update_yaxes(automargin=True, zeroline=False, title_standoff=8)
    return figure


def lines(
    results: Sequence[Result], x: str, y: str, hover: str, *, has_stripes: bool = False, scale: float = 1.0
) -> go.Figure:
    figure = new_figure()
    # The palette starts again after its last colour; a second strategy of a colour is dotted.
    used = colours(results)
    dashes = ["dot" if colour in used[:index] else "solid" for index, colour in enumerate(used)]
    if has_stripes:
        dashes = _stripes([result["curve"][y] for result in results], dashes)
    for index, (result, colour) in enumerate(zip(results, used, strict=True)):
        figure.add_scatter(
            x=result["curve"][x],
            y=[None if value is None else value * scale for value in result["curve"][y]],
            mode="lines" if len(result["curve"][x]) > 1 else "markers",
            line={"color": colour, "width": 2, "dash": dashes[index]},
            name=label_of(result),
            hovertemplate=hover,
            meta=index,
        )
    return figure


def _stripes(curves: Sequence[Sequence[float | None]], dashes: Sequence[str]) -> list[str]:
    """Dashes that take turns where curves are the same, so that every strategy's colour is seen in the one line."""
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
    """To the eye: closer than a chart can show."""
    return len(ours) == len(theirs) and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=0.01))
        for a, b in zip(ours, theirs, strict=True)
    )


def bars_per_worker(
    results: Sequence[Result], keys: Mapping[str, str], text: Callable[[Any], str], *, scale: float
) -> go.Figure:
    """Bars for every rank, strategies next to each other; the second quantity of a pair is hatched."""
    figure = new_figure()
    first, middles = 0, []
    for index, (result, colour) in enumerate(zip(results, colours(results), strict=True)):
        rows = result["per_worker"]
        middles.append(first + (len(rows) - 1) / 2)
        for number, (what, key) in enumerate(keys.items()):
            figure.add_bar(
                x=[first + position + (number - 0.5) * 0.4 for position in range(len(rows))],
                y=[None if row[key] is None else row[key] * scale for row in rows],
                width=0.38,
                marker={"color": colour, "pattern": {"shape": "/" if number else "", "size": 5, "fillmode": "replace"}},
                customdata=[[row["rank"], text(row[key])] for row in rows],
                hovertemplate=f"<b>{label_of(result)}</b>, rank %{{customdata[0]}}<br>{what} %{{customdata[1]}}"
                "<extra></extra>",
                meta=index,
            )
        first += len(rows) + 1
    figure.update_layout(hovermode="closest", barmode="overlay", height=330)
    figure.update_xaxes(tickvals=middles, ticktext=[_shortened(result) for result in results], showgrid=False, ticks="")
    # Slanted labels end at their bars, so that the last one stays inside the chart.
    figure.update_xaxes(autotickangles=[0, -40, -90], ticklabeloverflow="allow")
    return figure


def label_of(result: Result) -> str:
    return plain(str(result["label"]))


def wrapped(result: Result) -> str:
    """A long label on several lines, broken where its options and its codec begin."""
    words = re.split(r"(?=[:+ ])", str(result["label"]))
    pieces = [word[i : i + TICK_WIDTH] for word in words for i in range(0, len(word), TICK_WIDTH)]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > TICK_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "<br>".join(plain(line.strip()) for line in lines)


def _shortened(result: Result) -> str:
    """A label on one line; hovering shows all of it."""
    label = str(result["label"])
    return plain(label if len(label) <= TICK_LENGTH else f"{label[: TICK_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}")


def plain(text: str) -> str:
    """Text and nothing else: plotly reads markup and %{} in strings."""
    return html.escape(text, quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")
