"""The page of two runs or studies side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.present import conditions
from paceline.present.model import Column, Finding, Page, Table
from paceline.present.numbers import DASH, megabytes, milliseconds, number, percent, signed_percent
from paceline.results import Json
from paceline.results.commands import Diff, DiffRow, DiffSide
from paceline.study.diff import CANNOT_TELL, FAILED, PASSED

SOURCES = {
    "repeats": "95 %: from repeats on both sides (Welch's interval of the logarithms).",
    "steps": "95 %: from the steps within the runs, resampled in blocks; variation between runs is not included, use "
    "--repeats for that.",
}
SIDES = ("A", "B")


def diff_page(found: Diff, recipes: Mapping[str, Json] | None = None) -> Page:
    """B against A: times, outcomes, the split of a step, recipe and machine."""
    tables: list[Table[Any]] = [_times(found.rows), _outcomes(found.rows)]
    if any(row.split for row in found.rows):
        tables.append(_splits(found.rows))
    tables += [_facts(name, facts) for name, facts in _differences(found).items() if facts]
    findings = [
        Finding(f"Only in {side}: {', '.join(labels)}.")
        for side, labels in zip(SIDES, (found.only_a, found.only_b), strict=True)
        if labels
    ]
    if not found.recipe and not found.environment:
        findings.append(Finding("Same recipe, same machine."))
    for side, settings in (recipes or {}).items():
        findings += [Finding(f"{side}: {one.text}", kind="caution") for one in conditions.interventions([settings], [])]
    return Page(
        kind="Paceline diff",
        title=f"{found.a.name} and {found.b.name}",
        intro=[_side("A", found.a), _side("B", found.b)],
        tables=tables,
        findings=[*findings, *gate_findings(found)],
    )


def gate_findings(found: Diff) -> list[Finding]:
    """The verdict of --fail-if-slower on every row."""
    if found.fail_if_slower_percent is None:
        return []
    limit = f"{found.fail_if_slower_percent:g} %"
    words = {
        FAILED: f"is slower by more than {limit}",
        PASSED: f"is not slower by more than {limit}",
        CANNOT_TELL: f"cannot tell whether it is slower by more than {limit}; use more repeats or steps",
    }
    return [
        Finding(f"{row.label}: {words[row.gate or CANNOT_TELL]}.", kind="problem" if row.gate == FAILED else "finding")
        for row in found.rows
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
    return Table(columns=columns, rows=rows, notes=[SOURCES[source] for source in sources if source in SOURCES])


def _interval(row: DiffRow) -> str:
    bounds = row.interval95
    if bounds is None:
        return DASH
    return f"{signed_percent(100 * (bounds[0] - 1))} to {signed_percent(100 * (bounds[1] - 1))} %"


def _outcomes(rows: Sequence[DiffRow]) -> Table[DiffRow]:
    columns = [_name()]
    for index, side in enumerate(SIDES):
        columns.append(Column(title=f"test {side}", text=_accuracy(index)))
    for index, side in enumerate(SIDES):
        columns.append(Column(title=f"loss {side}", text=_loss(index), importance=10 + index))
    for index, side in enumerate(SIDES):
        columns.append(Column(title=f"MB sent {side}", text=_sent(index)))
    return Table(columns=columns, rows=rows)


def _accuracy(index: int) -> Any:
    return lambda row: percent(row.test_accuracy[index])


def _loss(index: int) -> Any:
    return lambda row: number(row.train_loss[index], 3)


def _sent(index: int) -> Any:
    return lambda row: megabytes(row.sent_bytes[index])


@dataclass(frozen=True)
class Parts:
    """The split of a step on one side."""

    name: str
    seconds: Mapping[str, float]


def _splits(rows: Sequence[DiffRow]) -> Table[Parts]:
    sides = [
        Parts(f"{row.label} {side}", {part: pair[index] for part, pair in row.split.items()})
        for row in rows
        if row.split is not None
        for index, side in enumerate(SIDES)
    ]
    columns: list[Column[Parts]] = [Column(title="ms of a step", text=lambda one: one.name, is_number=False)]
    for part in sides[0].seconds:
        name = part.removesuffix("_s")
        columns.append(Column(title=name, text=_part(part), importance=10 if name == "rest" else 100))
    return Table(columns=columns, rows=sides)


def _part(part: str) -> Any:
    return lambda one: milliseconds(one.seconds.get(part))


def _differences(found: Diff) -> dict[str, dict[str, tuple[Any, Any]]]:
    return {"recipe": found.recipe, "machine": found.environment}


def _facts(name: str, facts: Mapping[str, tuple[Any, Any]]) -> Table[tuple[str, tuple[Any, Any]]]:
    columns: list[Column[tuple[str, tuple[Any, Any]]]] = [
        Column(title=name, text=lambda fact: fact[0], is_number=False),
        Column(title="A", text=lambda fact: _text(fact[1][0]), is_number=False),
        Column(title="B", text=lambda fact: _text(fact[1][1]), is_number=False),
    ]
    return Table(columns=columns, rows=list(facts.items()))


def _text(value: object) -> str:
    if value is None:
        return "unset"
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value)) or DASH
