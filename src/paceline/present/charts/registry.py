"""Which charts a section of a page has.

A chart is a function with `@chart("section", order=...)` in a file of this package; no other file names it. It yields
the chart, or a sentence that says why there is none, or nothing.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

from paceline.present import charts
from paceline.present.chart import Chart
from paceline.present.model import Section

C = TypeVar("C")
Maker = Callable[[C], Iterable[Chart | str]]


_makers: dict[str, list[tuple[int, Maker[Any]]]] = {}


def chart(section: str, *, order: int) -> Callable[[Maker[C]], Maker[C]]:
    """Register a function that draws charts of a section's content; charts with a lower order come first."""

    def register(make: Maker[C]) -> Maker[C]:
        _makers.setdefault(section, []).append((order, make))
        return make

    return register


def make_section(id: str, title: str, content: object) -> Section:
    """A section with all its charts. Which content its charts draw is up to the section."""
    found = Section(id, title)
    made: list[Chart] = []
    for _, make in sorted(_all_makers().get(id, []), key=lambda entry: entry[0]):
        for one in make(content):
            if isinstance(one, Chart):
                made.append(one)
            else:
                found.missing.append(one)
    found.charts.extend(without_gaps(made))
    return found


def without_gaps(made: Sequence[Chart]) -> list[Chart]:
    """Narrow charts stand in pairs; one that is left over takes the whole width."""
    found: list[Chart] = []
    num_narrow = 0
    for one in made:
        if one.is_wide and num_narrow % 2:
            found[-1] = dataclasses.replace(found[-1], is_wide=True)
        num_narrow = 0 if one.is_wide else num_narrow + 1
        found.append(one)
    if num_narrow % 2:
        found[-1] = dataclasses.replace(found[-1], is_wide=True)
    return found


@cache
def _all_makers() -> dict[str, list[tuple[int, Maker[Any]]]]:
    for entry in pkgutil.iter_modules(charts.__path__):
        importlib.import_module(f"{charts.__name__}.{entry.name}")
    return _makers
