"""Data classes of charts: figures for plotly.js, choices between figures, and tables of drawn values."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.present.rows import ShownRow
from paceline.results.value import Json

TICK_WIDTH = 16  # characters in a line of a label
MAX_LINES = 4  # lines of a label beside a bar; a longer label is replaced by its short form


@dataclass(frozen=True)
class PlotlyFigure:
    """Traces and a layout for plotly.js, without colours of text and axes.

    The script of the HTML page sets these colours for its light or dark theme.
    """

    traces: list[Json] = field(default_factory=list)
    layout: Json = field(default_factory=dict)

    def add(self, kind: str, **trace: Any) -> None:
        self.traces.append({"type": kind, **trace})

    def x_axis(self, title: str = "", **changes: Any) -> None:
        self._axis("xaxis", title, 10, changes)

    def y_axis(self, title: str = "", **changes: Any) -> None:
        self._axis("yaxis", title, 8, changes)

    def _axis(self, name: str, title: str, standoff: int, changes: Mapping[str, Any]) -> None:
        axis = self.layout.setdefault(name, {})
        if title:
            axis["title"] = {"text": title, "standoff": standoff}
        axis.update(changes)


def new_figure(**layout: Any) -> PlotlyFigure:
    """Return an empty figure with the layout that all charts share. `layout` adds keys or replaces some."""
    axes = {name: {"automargin": True, "zeroline": False} for name in ("xaxis", "yaxis")}
    usual = {"showlegend": False, "height": 320, "hovermode": "closest", "margin": {"l": 10, "r": 14, "t": 12, "b": 10}}
    return PlotlyFigure(layout={**usual, **axes, **layout})


# A legend above a chart, for items that are not in the page's legend of strategies.
LEGEND_ABOVE = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


@dataclass(frozen=True)
class Choice:
    """Options that a reader of the page can switch between. Charts with a choice of the same name switch together."""

    name: str
    options: tuple[str, ...]
    is_list: bool = False  # a drop-down list instead of buttons side by side


@dataclass(frozen=True)
class Values:
    """The values of a chart as a table, for exact numbers and for screen readers. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """A chart with one figure, or with several figures that a reader of the page switches between.

    The reader switches with `choices` (buttons or drop-down lists). Each combination of the options of all choices has
    its own figure, called a view. In `views`, the option of the last choice varies fastest.
    """

    id: str
    title: str
    caption: str
    views: Sequence[PlotlyFigure]
    table: Values
    is_wide: bool = False
    choices: Sequence[Choice] = ()
    initial: int = 0  # index of the view that is visible first

    @property
    def picks(self) -> list[int]:
        """The indices of the options that the initial view shows: one index for each choice."""
        return self._picks_of(self.initial)

    def options_of(self, number: int) -> list[str]:
        """Return the selected option of each choice (selector) for the view with index `number`."""
        return [choice.options[pick] for choice, pick in zip(self.choices, self._picks_of(number), strict=True)]

    def title_of(self, number: int) -> str:
        """Return the title of the chart, followed by the options of the view with index `number`."""
        joined = " over " if [choice.name for choice in self.choices] == ["over"] else ": "
        return joined.join([self.title, *([", ".join(self.options_of(number))] if self.choices else [])])

    def _picks_of(self, number: int) -> list[int]:
        found = []
        for choice in reversed(self.choices):
            number, pick = divmod(number, len(choice.options))
            found.append(pick)
        return found[::-1]

    @property
    def spec(self) -> Json:
        """The chart as JSON for the page's script: its figures, and the number of options in each of its choices."""
        views = [{"data": view.traces, "layout": view.layout} for view in self.views]
        sizes = [len(choice.options) for choice in self.choices]
        return {"id": self.id, "sizes": sizes, "initial": self.initial, "views": views}


def compact(value: Any) -> Any:
    """Return nested values for JSON: floats rounded to five significant digits, and None for NaN and infinity."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [compact(item) for item in value]
    return value


def label_of(row: ShownRow) -> str:
    """Return the full label of a row, escaped for the hover text of a plotly chart."""
    return plotly_text(row.full_label)


def wrapped_label_of(row: ShownRow) -> str:
    """Return the label of a row for an axis, broken into lines of at most `TICK_WIDTH` characters.

    Lines break before an option (`:`), a codec (`+`) or a space, and after a comma; pieces of more than `TICK_WIDTH`
    characters are split. A label that needs more than `MAX_LINES` lines is replaced by the short label.
    """
    lines = _lines(row.label)
    if len(lines) > MAX_LINES:
        lines = _lines(row.short_label)
    return "<br>".join(plotly_text(line.strip()) for line in lines)


def _lines(label: str) -> list[str]:
    words = re.split(r"(?=[:+ ])|(?<=,)(?! )", label)
    pieces = [word[i : i + TICK_WIDTH] for word in words for i in range(0, len(word), TICK_WIDTH)]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > TICK_WIDTH:
            lines.append("")
        lines[-1] += piece
    return lines


def short_label_of(row: ShownRow) -> str:
    """Return the short label of a row, escaped for the axis of a plotly chart."""
    return plotly_text(row.short_label)


def plotly_text(text: str) -> str:
    """Return text escaped for plotly, which interprets markup and %{} in strings."""
    return html.escape(text, quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")
