"""Read and write the JSON files of stored runs and studies.

Files are validated when read. If a file is damaged, or was written by another program or by a newer version,
`Unreadable` is raised with the reason.
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
MOST_BYTES = 1 << 30  # larger than any file that paceline writes

V = TypeVar("V", bound=Value)


class Unreadable(UsageError):
    """Error for a stored file that cannot be read. The message gives the reason."""


def encode(value: Value) -> bytes:
    """Encode a value as indented JSON. NaN and infinity become null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def read_file(file: Path) -> RunRecord | StudyResult:
    """Read the run or study stored in a file. Raises Unreadable if the file is not valid."""
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
        name = plain.setdefault("study", "compare")  # the first versions had only comparisons
        return _convert(plain, study_types.get(name, StudyResult) if isinstance(name, str) else StudyResult, file)
    raise Unreadable(f"{str(file)!r} is neither a run nor a study: its kind is {str(kind)[:40]!r}")


def read_object(file: Path) -> Json:
    """Read the JSON object in a file. Raises Unreadable if the file contains none."""
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


def as_stored(result: RunResult) -> RunResult:
    """Encode a result as JSON and decode it again, so that the returned result equals one loaded from a file."""
    return msgspec.json.decode(msgspec.json.encode(result), type=RunResult)


def convert(plain: Any, kind: type[V]) -> V:
    """Convert a decoded JSON object to an instance of the result class `kind`.

    Raises msgspec.ValidationError if the object does not have the fields of that class.
    """
    return msgspec.convert(plain, kind)


def convert_reports(answers: Iterable[Any], kind: type[V]) -> list[V]:
    """Convert workers' reports, which are in order of rank, to instances of the report class `kind`.

    Reports from another host arrive as plain dicts. Raises RunError if a report does not have the fields of the class.
    """
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
