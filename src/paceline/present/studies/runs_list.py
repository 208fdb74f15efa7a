"""The list of stored runs and studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.present import conditions
from paceline.present.model import Column, Finding, Page, RunSummary, Table
from paceline.present.numbers import DASH, milliseconds, percent
from paceline.present.pages import presenters
from paceline.runs import Stored


@dataclass(frozen=True)
class Listed:
    stored: Stored
    summary: RunSummary


def list_page(found: Sequence[Stored]) -> Page:
    """One row per run or study; the errors of unreadable ones follow the table."""
    columns: list[Column[Listed]] = [
        Column(title="Folder", short="folder", text=lambda one: one.stored.name, is_number=False),
        Column(title="Kind", short="kind", text=_kind, is_number=False, importance=20),
        Column(title="Status", short="status", text=_status, is_number=False),
        Column(title="Model", short="model", text=lambda one: one.stored.model or DASH, is_number=False, importance=30),
        Column(title="Strategy", short="strategy", text=lambda one: one.summary.strategy or DASH, is_number=False),
        Column(
            title="Workers",
            short="workers",
            text=lambda one: str(one.summary.workers or DASH),
            importance=10,
        ),
        Column(title="Iteration, ms", short="ms/step", text=lambda one: milliseconds(one.summary.iteration_s)),
        Column(title="Test accuracy", short="test", text=lambda one: percent(one.summary.test_accuracy), importance=40),
    ]
    rows = [Listed(stored, _summary(stored)) for stored in found]
    unreadable = [Finding(stored.reason, kind="caution") for stored in found if stored.reason]
    return Page(
        kind="Paceline runs",
        title="Runs and studies",
        tables=[Table(columns=columns, rows=rows)] if rows else (),
        findings=unreadable,
    )


def _summary(stored: Stored) -> RunSummary:
    if stored.content is None:
        return RunSummary(strategy="")
    presenter = presenters.classes.get(stored.study or "run", presenters.classes["compare"])
    return presenter().summary(stored)


def _kind(one: Listed) -> str:
    return DASH if one.stored.content is None else one.stored.kind


def _status(one: Listed) -> str:
    return one.stored.status + (", inject" if conditions.is_disturbed(one.stored.recipe_values) else "")
