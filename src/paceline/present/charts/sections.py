"""The sections that every page of rows has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.present.charts.registry import make_section
from paceline.present.model import Section
from paceline.present.rows import ShownRow
from paceline.results import Row
from paceline.study.results import fastest_of

TITLES = {
    "speed": "Speed",
    "time": "Where the time goes",
    "learning": "Learning",
    "traffic": "Traffic",
    "resources": "Resources",
}


@dataclass(frozen=True)
class Rows:
    """The content of these sections. Charts of a single strategy begin with the row at `first`."""

    rows: Sequence[ShownRow]
    first: int


def make_sections(rows: Sequence[ShownRow]) -> list[Section]:
    """Every section with its charts."""
    content = Rows(rows, shown_first(rows))
    return [make_section(id, title, content) for id, title in TITLES.items()]


def shown_first(rows: Sequence[Row]) -> int:
    """The fastest row, unless only others have a straggler."""
    slow = [index for index, row in enumerate(rows) if row.stragglers]
    label = fastest_of(rows).label
    fastest = next(index for index, row in enumerate(rows) if row.label == label)
    return slow[0] if slow and fastest not in slow else fastest
