"""What only one kind of study has to show: a section of its own before those that all share, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.report import published, tuning
from paceline.report.collect import Material
from paceline.report.points import Point, Result
from paceline.report.sections import Section

SECTIONS: dict[str, Callable[[Mapping[str, Any], Sequence[Result]], Section]] = {
    "tune": tuning.section,
    "reproduce": published.section,
}
POINTS: dict[str, Callable[[Mapping[str, Any]], list[Point]]] = {
    "tune": tuning.points,
    "reproduce": published.points,
}


def study_sections(material: Material) -> list[Section]:
    """Of a page of one study; several side by side are compared as plain results."""
    stored = _alone(material)
    make = SECTIONS.get(str(stored.get("study")))
    return [make(stored, material.results)] if make else []


def study_points(material: Material) -> list[Point]:
    stored = _alone(material)
    make = POINTS.get(str(stored.get("study")))
    return make(stored) if make else []


def _alone(material: Material) -> Mapping[str, Any]:
    return material.sources[0].stored if len(material.sources) == 1 else {}
