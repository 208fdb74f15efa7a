"""The pages of `paceline runs`: the list of stored runs and studies, and the comparison of two of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.present import conditions
from paceline.present.numbers import DASH, megabytes, milliseconds, number, percentage, signed_percent
from paceline.present.page_parts import ALWAYS_SHOWN, Column, Finding, Page, RunSummary, Table
from paceline.present.pages import presenters
from paceline.present.styles import PART_NAMES
from paceline.results import Json
from paceline.results.commands import Diff, DiffRow, DiffSide
from paceline.runs import Stored
from paceline.study.diff import CANNOT_TELL, FAILED, PASSED

INTERVAL_NOTES = {
    "repeats": "95 %: from the repeats of both sides (Welch's interval of the logarithms).",
    "steps": "95 %: from the steps of each run, resampled in blocks. It does not include variation between runs; "
    "use --repeats for that.",
}
SIDES = ("A", "B")


@dataclass(frozen=True)
class Listed:
    """A row in the list of runs: a stored run or study, and its summary."""

    stored: Stored
    summary: RunSummary


def list_page(stored: Sequence[Stored]) -> Page:
    """Return a page with a row for each run or study, and a caution for each one that cannot be read."""
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
        Column(title="Step, ms", short="ms/step", text=lambda one: milliseconds(one.summary.iteration_s)),
        Column(
            title="Test accuracy", short="test", text=lambda one: percentage(one.summary.test_accuracy), importance=40
        ),
    ]
    rows = [Listed(item, _summary(item)) for item in stored]
    unreadable = [Finding(item.reason, kind="caution") for item in stored if item.reason]
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


def diff_page(diff: Diff, recipes: Mapping[str, Json] | None = None) -> Page:
    """Return a page that compares results A and B in times, accuracy, loss, bytes, recipe and machine.

    `recipes` has the recipe values of A and of B, for cautions about injected faults and profiled steps.
    """
    tables: list[Table[Any]] = [_times(diff.rows), _outcomes(diff.rows)]
    if any(row.split for row in diff.rows):
        tables.append(_splits(diff.rows))
    differences = {"recipe": diff.recipe, "machine": diff.environment}
    tables += [_differences(name, values) for name, values in differences.items() if values]
    findings = [
        Finding(f"Only in {side}: {', '.join(labels)}.")
        for side, labels in zip(SIDES, (diff.only_a, diff.only_b), strict=True)
        if labels
    ]
    if not diff.recipe and not diff.environment:
        findings.append(Finding("Same recipe, same machine."))
    for side, settings in (recipes or {}).items():
        findings += [Finding(f"{side}: {one.text}", kind="caution") for one in conditions.interventions([settings], [])]
    return Page(
        kind="Paceline diff",
        title=f"{diff.a.name} and {diff.b.name}",
        intro=[_side("A", diff.a), _side("B", diff.b)],
        tables=tables,
        findings=[*findings, *_gate_findings(diff)],
    )


def _gate_findings(diff: Diff) -> list[Finding]:
    """Return one finding per row with the verdict of --fail-if-slower. Without that option, return an empty list."""
    if diff.fail_if_slower_percent is None:
        return []
    limit = f"{diff.fail_if_slower_percent:g} %"
    verdicts = {
        FAILED: f"is slower by more than {limit}",
        PASSED: f"is not slower by more than {limit}",
        CANNOT_TELL: f"uncertain whether it is slower by more than {limit}; use more repeats or steps",
    }
    return [
        Finding(
            f"{row.label}: {verdicts[row.gate or CANNOT_TELL]}.", kind="problem" if row.gate == FAILED else "finding"
        )
        for row in diff.rows
    ]


def _side(name: str, side: DiffSide) -> str:
    words = ", ".join(word for word in (side.kind, side.status, side.started) if word)
    return f"{name}  {side.name} ({words})"


def _name() -> Column[DiffRow]:
    return Column(title="Strategy", short="strategy", text=lambda row: row.label, is_number=False)


def _times(rows: Sequence[DiffRow]) -> Table[DiffRow]:
    columns = [
        _name(),
        Column[DiffRow](title="ms A", text=lambda row: milliseconds(row.iteration_s[0]), importance=20),
        Column[DiffRow](title="ms B", text=lambda row: milliseconds(row.iteration_s[1])),
        Column[DiffRow](title="B/A", text=lambda row: f"{row.ratio:.3f}", importance=10),
        Column[DiffRow](title="change", text=lambda row: f"{signed_percent(100 * (row.ratio - 1))} %"),
        Column[DiffRow](title="95 %", text=_interval),
        Column[DiffRow](title="B is", text=lambda row: row.verdict),
    ]
    sources = dict.fromkeys(row.interval_from for row in rows if row.interval_from)
    return Table(
        columns=columns, rows=rows, notes=[INTERVAL_NOTES[source] for source in sources if source in INTERVAL_NOTES]
    )


def _interval(row: DiffRow) -> str:
    bounds = row.interval95
    if bounds is None:
        return DASH
    return f"{signed_percent(100 * (bounds[0] - 1))} to {signed_percent(100 * (bounds[1] - 1))} %"


def _outcomes(rows: Sequence[DiffRow]) -> Table[DiffRow]:
    columns = [
        _name(),
        *_per_side("test", lambda row, side: percentage(row.test_accuracy[side])),
        *_per_side("loss", lambda row, side: number(row.train_loss[side], 3), importance=10),
        *_per_side("MB sent", lambda row, side: megabytes(row.sent_bytes[side])),
    ]
    return Table(columns=columns, rows=rows)


def _per_side(title: str, text: Callable[[DiffRow, int], str], importance: int = ALWAYS_SHOWN) -> list[Column[DiffRow]]:
    """Return two columns of one quantity: its values in the compared results A and B."""

    def column(index: int) -> Column[DiffRow]:
        return Column(
            title=f"{title} {SIDES[index]}",
            text=lambda row: text(row, index),
            importance=importance if importance == ALWAYS_SHOWN else importance + index,
        )

    return [column(0), column(1)]


@dataclass(frozen=True)
class StepParts:
    """The seconds of each part of a step under one strategy, in result A or in result B."""

    name: str
    seconds: Mapping[str, float]


def _splits(rows: Sequence[DiffRow]) -> Table[StepParts]:
    sides = [
        StepParts(f"{row.label} {side}", {part: pair[index] for part, pair in row.split.items()})
        for row in rows
        if row.split is not None
        for index, side in enumerate(SIDES)
    ]
    columns: list[Column[StepParts]] = [Column(title="ms of a step", text=lambda one: one.name, is_number=False)]
    for part in sides[0].seconds:
        name = part.removesuffix("_s")
        importance = 10 if name == "rest" else ALWAYS_SHOWN
        columns.append(Column(title=PART_NAMES.get(name, name), text=_milliseconds_of(part), importance=importance))
    return Table(columns=columns, rows=sides)


def _milliseconds_of(part: str) -> Callable[[StepParts], str]:
    return lambda side: milliseconds(side.seconds.get(part))


def _differences(name: str, values: Mapping[str, tuple[Any, Any]]) -> Table[tuple[str, tuple[Any, Any]]]:
    """Return a table of the recipe keys or machine facts in which A and B differ."""
    columns: list[Column[tuple[str, tuple[Any, Any]]]] = [
        Column(title=name, text=lambda row: row[0], is_number=False),
        Column(title="A", text=lambda row: _text(row[1][0]), is_number=False),
        Column(title="B", text=lambda row: _text(row[1][1]), is_number=False),
    ]
    return Table(columns=columns, rows=list(values.items()))


def _text(value: object) -> str:
    if value is None:
        return "unset"
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value)) or DASH
