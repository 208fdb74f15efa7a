"""What a chart is: figures for plotly.js as plain values, what a reader can switch between, and the same as a table."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TICK_WIDTH = 16  # characters of a label per line
MAX_LINES = 4  # of a label beside a bar; a longer one gives way to its short name


@dataclass(frozen=True)
class Figure:
    """Traces and a layout in plotly's words; ink and grid get their colours from the page's theme."""

    traces: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

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


def new_figure(**layout: Any) -> Figure:
    """Without plotly's template: the page's theme decides."""
    axes = {name: {"automargin": True, "zeroline": False} for name in ("xaxis", "yaxis")}
    usual = {"showlegend": False, "height": 320, "hovermode": "closest", "margin": {"l": 10, "r": 14, "t": 12, "b": 10}}
    return Figure(layout={**usual, **axes, **layout})


# A legend inside a chart, above it: for what the page's own legend of strategies does not name.
LEGEND_ABOVE = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"}


@dataclass(frozen=True)
class Choice:
    """What a reader can switch between; charts that offer the same choice switch together."""

    name: str
    options: tuple[str, ...]
    is_list: bool = False  # a drop-down list instead of buttons side by side


@dataclass(frozen=True)
class Table:
    """A chart's values for those who cannot see it; the first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """One chart; its views are in the order of its choices, the last choice running fastest."""

    id: str
    title: str
    caption: str
    views: Sequence[Figure]
    table: Table
    is_wide: bool = False
    choices: Sequence[Choice] = ()
    initial: int = 0

    @property
    def picks(self) -> list[int]:
        """Which option of each choice the initial view stands for."""
        return self._picks_of(self.initial)

    def options_of(self, number: int) -> list[str]:
        """What was chosen for a view."""
        return [choice.options[pick] for choice, pick in zip(self.choices, self._picks_of(number), strict=True)]

    def title_of(self, number: int) -> str:
        """The title with what was chosen for a view."""
        joined = " over " if [choice.name for choice in self.choices] == ["over"] else ": "
        return joined.join([self.title, *([", ".join(self.options_of(number))] if self.choices else [])])

    def _picks_of(self, number: int) -> list[int]:
        found = []
        for choice in reversed(self.choices):
            number, pick = divmod(number, len(choice.options))
            found.append(pick)
        return found[::-1]

    @property
    def spec(self) -> dict[str, Any]:
        """What the page's script draws."""
        views = [{"data": view.traces, "layout": view.layout} for view in self.views]
        sizes = [len(choice.options) for choice in self.choices]
        return {"id": self.id, "sizes": sizes, "initial": self.initial, "views": views}


def compact(value: Any) -> Any:
    """The same plain values with five digits, which no eye tells apart, and null for what JSON cannot say."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [compact(item) for item in value]
    return value


def label_of(result: Mapping[str, Any]) -> str:
    """All of it, for what is shown on hovering."""
    return plain(str(result.get("full_label", result["label"])))


def wrapped(result: Mapping[str, Any]) -> str:
    """A long label on several lines, broken where its options and its codec begin; beyond a few, the short one."""
    lines = _lines(str(result["label"]))
    if len(lines) > MAX_LINES:
        lines = _lines(str(result.get("short_label", result["label"])))
    return "<br>".join(plain(line.strip()) for line in lines)


def _lines(label: str) -> list[str]:
    words = re.split(r"(?=[:+ ])|(?<=,)(?! )", label)
    pieces = [word[i : i + TICK_WIDTH] for word in words for i in range(0, len(word), TICK_WIDTH)]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > TICK_WIDTH:
            lines.append("")
        lines[-1] += piece
    return lines


def shortened(result: Mapping[str, Any]) -> str:
    """A label on one line; hovering shows all of it."""
    return plain(str(result.get("short_label", result["label"])))


def plain(text: str) -> str:
    """Text and nothing else: plotly reads markup and %{} in strings."""
    return html.escape(text, quote=False).replace("%{", "%\N{ZERO WIDTH SPACE}{")
