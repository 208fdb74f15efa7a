"""Typed versions of functions that still take plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.results import Environment, Row, RunRecord, RunResult, StudyResult, convert, study_types, to_json
from paceline.study import results as plain


def combine(runs: Sequence[RunResult]) -> Row:
    return convert(plain.combine([to_json(run) for run in runs]), Row)


def compared(rows: Sequence[Row]) -> list[Row]:
    values = [to_json(row) for row in rows]
    plain.add_comparisons(values)
    return [convert(value, Row) for value in values]


def typed_study(value: StudyResult | Mapping[str, Any]) -> StudyResult:
    if isinstance(value, StudyResult):
        return value
    given = {key: item for key, item in value.items() if key != "folder"}
    return convert(given, study_types.get(str(given.get("study", "compare")), StudyResult))


def typed_record(value: RunRecord | Mapping[str, Any]) -> RunRecord:
    return (
        value if isinstance(value, RunRecord) else convert({k: v for k, v in value.items() if k != "folder"}, RunRecord)
    )


def typed_run(value: RunResult | Mapping[str, Any]) -> RunResult:
    return value if isinstance(value, RunResult) else convert(dict(value), RunResult)


def typed_environment(value: Environment | Mapping[str, Any]) -> Environment:
    return value if isinstance(value, Environment) else convert(dict(value), Environment)
