"""Register chart functions, and make the sections of a page from the charts of these functions.

A chart function has the decorator `@chart("section", order=...)`, is in a file of this package, and needs no other
registration. It yields charts; instead of a chart that cannot be drawn, it can yield a sentence that says why.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from paceline.present import charts as package
from paceline.present.chart import Chart
from paceline.present.page_parts import PageSection
from paceline.present.rows import ShownRow
from paceline.results import Row
from paceline.study.run_results import fastest_of

TITLES = {
    "speed": "Speed",
    "time": "Where the time goes",
    "learning": "Learning",
    "traffic": "Traffic",
    "resources": "Resources",
}


@dataclass(frozen=True)
class Rows:
    """The rows (results) to draw. Charts that show one row at a time begin with the row at index `first`."""

    rows: Sequence[ShownRow]
    first: int


def make_sections(rows: Sequence[ShownRow]) -> list[PageSection]:
    """Return the chart sections of a page that compares rows."""
    content = Rows(rows, shown_first(rows))
    return [make_section(id, title, content) for id, title in TITLES.items()]


def shown_first(rows: Sequence[Row]) -> int:
    """Return the index of the row that charts of a single row show before the reader selects another row.

    These charts show the fastest row. However, if the fastest row has no straggler and other rows have one, the charts
    show the first row with a straggler.
    """
    slow = [index for index, row in enumerate(rows) if row.stragglers]
    label = fastest_of(rows).label
    fastest = next(index for index, row in enumerate(rows) if row.label == label)
    return slow[0] if slow and fastest not in slow else fastest


C = TypeVar("C")
Maker = Callable[[C], Iterable[Chart | str]]


_makers: dict[str, list[tuple[int, Maker[Any]]]] = {}


def chart(section: str, *, order: int) -> Callable[[Maker[C]], Maker[C]]:
    """Return a decorator that registers a chart function for a section. Charts of lower `order` come first."""

    def register(make: Maker[C]) -> Maker[C]:
        _makers.setdefault(section, []).append((order, make))
        return make

    return register


def make_section(id: str, title: str, content: object) -> PageSection:
    """Return a section with the charts of all functions that are registered for the section `id`.

    Each function is called with `content`, whose type depends on the section.
    """
    section = PageSection(id, title)
    charts: list[Chart] = []
    for _, make in sorted(_all_makers().get(id, []), key=lambda entry: entry[0]):
        for one in make(content):
            if isinstance(one, Chart):
                charts.append(one)
            else:
                section.missing.append(one)
    section.charts.extend(without_gaps(charts))
    return section


def without_gaps(given: Sequence[Chart]) -> list[Chart]:
    """Return the charts in the same order, but make a narrow chart wide if it would have no chart beside it.

    Two consecutive narrow charts are side by side; a wide chart fills the width of the page.
    """
    found: list[Chart] = []
    num_narrow = 0
    for one in given:
        if one.is_wide and num_narrow % 2:
            found[-1] = dataclasses.replace(found[-1], is_wide=True)
        num_narrow = 0 if one.is_wide else num_narrow + 1
        found.append(one)
    if num_narrow % 2:
        found[-1] = dataclasses.replace(found[-1], is_wide=True)
    return found


@cache
def _all_makers() -> dict[str, list[tuple[int, Maker[Any]]]]:
    for entry in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{entry.name}")
    return _makers
