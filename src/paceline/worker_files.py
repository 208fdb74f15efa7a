"""Read the measurements of a run's workers: the JSON-lines files `workers/RANK.jsonl` in the run's folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from paceline.errors import RunError, UsageError

Line = dict[str, Any]  # the value of `kind` determines the other keys

MOST_LINE_BYTES = 16 * 2**20  # workers write lines of some kilobytes; a longer line is from another program
MOST_FOLDERS = 8  # in the path of a file of a run
_DECODE = json.JSONDecoder().raw_decode  # a fifth faster than json.loads
_MOST = 2**63  # every number of a worker is smaller; JSON of other programs may also have infinity and NaN
_MISSING = object()
_WHOLE, _NUMBER, _TEXT = (int,), (int, float), (str,)
_WHOLE_OR_NULL, _NUMBER_OR_NULL = (int, type(None)), (int, float, type(None))
_SPAN = {"step": _WHOLE, "begin_s": _NUMBER, "end_s": _NUMBER}
_OPERATION = {**_SPAN, "op": _TEXT, "number": _WHOLE, "peer": _WHOLE_OR_NULL, "tag": _WHOLE}
# Keys that readers need, with their types, by kind of line. Step lines of old runs have no begin_s.
_TYPES: dict[Any, tuple[tuple[str, tuple[type, ...]], ...]] = {
    "step": (("step", _WHOLE), ("iteration_s", _NUMBER)),
    "span": tuple({**_SPAN, "phase": _TEXT}.items()),
    "op": tuple({**_OPERATION, "bytes": _NUMBER}.items()),
    "blocked": tuple(_OPERATION.items()),
    "sample": (("time_s", _NUMBER),),
}
# Keys that may be missing, with their types, by kind of line. All other values of samples are numbers or null.
_OPTIONAL: dict[Any, tuple[tuple[str, tuple[type, ...]], ...]] = {
    "step": (
        ("begin_s", _NUMBER),
        *((name, _NUMBER_OR_NULL) for name in ("data_s", "loss")),
        *((name, _WHOLE_OR_NULL) for name in ("num_right", "num_answers", "num_samples", "sent_bytes")),
    ),
    "op": (("medium", _TEXT),),
    "blocked": (("busy", (bool,)),),
    "head": (
        *((name, _NUMBER_OR_NULL) for name in ("clock_offset_s", "clock_error_s")),
        ("pid", _WHOLE_OR_NULL),
        ("host", (str, type(None))),
    ),
}


def worker_files(run: Path) -> dict[int, Path]:
    """Return the file of every worker of a run, by rank."""
    files = {rank: file for file in (run / "workers").glob("*.jsonl") if (rank := _rank_of(file)) is not None}
    return dict(sorted(files.items()))


def _rank_of(file: Path) -> int | None:
    """Return the rank in the name of a worker's file, or None for any other file name."""
    name = file.stem
    is_rank = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
    return int(name) if is_rank and file.is_file() else None


def worker_lines(file: Path) -> Iterator[Line]:
    """Yield every line of a worker's file as a dict that has at least the key `kind`.

    An unreadable last line without a line break is skipped, because the worker was killed while writing it. Raises
    UsageError if another line is damaged or the file cannot be read.
    """
    try:
        with file.open("rb") as stream:
            for number, data in enumerate(iter(partial(stream.readline, MOST_LINE_BYTES + 1), b""), start=1):
                if data.isspace():
                    continue
                try:
                    yield _parsed(data)
                except (ValueError, RecursionError) as error:
                    if not data.endswith(b"\n") and len(data) <= MOST_LINE_BYTES:
                        return
                    raise UsageError(f"{str(file)!r} is damaged in line {number}: {error}") from None
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error.strerror}") from None


def _parsed(data: bytes) -> Line:
    if len(data) > MOST_LINE_BYTES:
        raise ValueError(f"it is longer than {MOST_LINE_BYTES:,} bytes")
    text = data.decode().strip()
    line, end = _DECODE(text)
    if end < len(text):
        raise ValueError("something follows its JSON object")
    if type(line) is not dict:
        raise ValueError("it is not a JSON object")
    kind = line.setdefault("kind", "step")  # old runs have only step lines, without a kind
    if type(kind) is not str:
        raise ValueError(f"its kind is {kind!r}")
    for key, types in _TYPES.get(kind, ()):
        value = line.get(key, _MISSING)
        if type(value) not in types or (type(value) is not str and value is not None and not -_MOST < value < _MOST):
            raise _damage(line, key)
    for key, types in _OPTIONAL.get(kind, ()):
        value = line.get(key)
        if value is None:
            if key in line and type(None) not in types:
                raise _damage(line, key)
        elif type(value) not in types or (type(value) is not str and not -_MOST < value < _MOST):
            raise _damage(line, key)
    if kind == "sample":
        for key, value in line.items():
            if key != "kind" and value is not None and (type(value) not in _NUMBER or not -_MOST < value < _MOST):
                raise _damage(line, key)
    return line


def _damage(line: Line, key: str) -> ValueError:
    value = line.get(key, _MISSING)
    is_number = type(value) in _NUMBER and not -_MOST < value < _MOST
    words = "missing" if value is _MISSING else repr(value)
    return ValueError(f"{key} of a {line['kind']} is {words}{', which is no number of a worker' if is_number else ''}")


def open_in_run(folder: Path, name: str, *, rank: int, appends: bool = False) -> BinaryIO:
    """Open a file that a worker of another host sends, for writing in a subfolder of the run's folder.

    Raises RunError if the name leads anywhere else, also through a link. The files beside the subfolders, such as the
    recipe, are not for workers to write.
    """
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts or "\0" in name or not 2 <= len(inner.parts) <= MOST_FOLDERS:
        raise RunError(f"worker {rank} sent the file {name!r}, which is outside the run's folder")
    target = folder / inner
    if target.parent.resolve() != folder.resolve() / inner.parent:
        raise RunError(f"worker {rank} sent the file {name!r}, but a folder on its path is a link")
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_APPEND if appends else os.O_TRUNC)
    return os.fdopen(os.open(target, flags, 0o666), "ab" if appends else "wb")
