"""Reading and writing the JSON of runs and studies: the only code that does either.

Reading validates: a file that is damaged, foreign or of a newer version raises `Unreadable` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paceline.errors import RunError, UsageError
from paceline.results.run import RunResult
from paceline.results.study import SCHEMA, RunRecord, StudyResult, study_types
from paceline.results.value import Json, Value

RUN_FILE = "summary.json"
STUDY_FILE = "study.json"
MOST_BYTES = 1 << 30  # larger than any file that we write: refused before it fills the memory

V = TypeVar("V", bound=Value)


class Unreadable(UsageError):
    """A stored file that cannot be used, and why."""


def encode(value: Value) -> bytes:
    """The value as indented JSON; NaN and infinity become null, because JSON has neither."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def read_file(file: Path) -> RunRecord | StudyResult:
    """The run or the study in a file."""
    plain = read_object(file)
    schema = plain.get("schema")
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise Unreadable(f"{str(file)!r} is damaged: it has no schema number")
    if schema > SCHEMA:
        raise Unreadable(
            f"{str(file)!r} has schema {schema}, this version of paceline reads up to {SCHEMA}; use a newer paceline"
        )
    kind = plain.get("kind")
    if kind == "run":
        return _convert(plain, RunRecord, file)
    if kind == "study":
        name = plain.setdefault("study", "compare")  # the first studies were comparisons and did not say so
        return _convert(plain, study_types.get(name, StudyResult) if isinstance(name, str) else StudyResult, file)
    raise Unreadable(f"{str(file)!r} is neither a run nor a study: its kind is {str(kind)[:40]!r}")


def read_object(file: Path) -> Json:
    """The JSON object in a file."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise Unreadable(f"{str(file)!r} is damaged: it is larger than any file of a run")
        plain: Any = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise Unreadable(f"{str(file)!r} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise Unreadable(f"{str(file)!r} is damaged: {error}") from None
    if not isinstance(plain, dict):
        raise Unreadable(f"{str(file)!r} is damaged: it holds no JSON object")
    return plain


def settled(result: RunResult) -> RunResult:
    """The result as it will be read again: what is shown now equals what is shown later."""
    return msgspec.json.decode(msgspec.json.encode(result), type=RunResult)


def convert(plain: Any, kind: type[V]) -> V:
    """Plain values as a typed one; raises msgspec.ValidationError where they do not fit."""
    return msgspec.convert(plain, kind)


def received(answers: Iterable[Any], kind: type[V]) -> list[V]:
    """The reports of workers in order of rank: typed already, or plain values where they come from another host."""
    reports = []
    for rank, answer in enumerate(answers):
        try:
            reports.append(convert(answer, kind))
        except (msgspec.ValidationError, RecursionError) as error:
            advice = "install the same version of paceline on all hosts"
            raise RunError(f"the report of worker {rank} cannot be read ({error}); {advice}") from None
    return reports


def _convert(plain: Json, kind: type[V], file: Path) -> V:
    try:
        return convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Unreadable(f"{str(file)!r} is damaged: {error}") from None
