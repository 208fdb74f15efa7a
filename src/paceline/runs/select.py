"""Find stored runs and studies by name, path or filter, and delete them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path

from paceline.errors import RunError, UsageError, unknown
from paceline.results import DONE, FAILED, INTERRUPTED, RUN_FILE, STUDY_FILE
from paceline.runs.store import hidden_name
from paceline.runs.stored import UNREADABLE, Stored, list_runs, read

STATUSES = (DONE, FAILED, INTERRUPTED, UNREADABLE)
KINDS = ("run", "study")
_LAST = re.compile(r"last(?:~(\d{1,9}))?")
_AGE = re.compile(r"(\d{1,9})\s*([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def find(name: str, out: Path) -> Stored:
    """Return a stored run or study: `last`, `last~1` (the one before), a name below `out`, or a path."""
    match = _LAST.fullmatch(name)
    if match and not (out / name).exists():
        found = [item for item in list_runs(out) if item.content is not None]
        back = int(match[1] or 0)
        if back >= len(found):
            raise UsageError(f"{name!r} is not there: {str(out)!r} holds {len(found)} runs and studies")
        return found[-1 - back]
    return read(place(_completed(name, out), out))


def folder_of(name: str, out: Path) -> Path:
    """Return the folder that `find` would read; it may also be a folder of several runs."""
    is_last = _LAST.fullmatch(name) and not (out / name).exists()
    return find(name, out).folder if is_last else place(_completed(name, out), out)


def _completed(name: str, out: Path) -> str:
    """Complete a unique prefix of a name below `out`; return other names unchanged."""
    if not name or (out / name).exists() or Path(name).exists():
        return name
    known = [item.name for item in list_runs(out)]
    begun = [one for one in known if one.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def place(name: str, out: Path) -> Path:
    """Return the folder of a name: one below `out` takes precedence over a path."""
    is_path = Path(name).parts[:1] in ((), ("..",))  # relative to the current folder, not to `out`
    for folder in (Path(name),) if is_path else (out / name, Path(name)):
        if folder.exists() or folder.is_symlink():
            return folder
    known = [item.name for item in list_runs(out)]
    if known:
        raise unknown("run or study", name, known)
    raise UsageError(f"there is no {name!r} in {str(out)!r}, nor a folder")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Filter for lists of runs and studies; empty fields match everything. Names may contain `*` and `?`."""

    model: str = ""
    strategy: str = ""
    status: str = ""
    kind: str = ""
    since: str = ""  # a date, a date with time, or an age: 12h, 7d
    last: int | None = None  # keep only this many, the newest

    def __post_init__(self) -> None:
        if self.status and self.status not in STATUSES:
            raise unknown("status", self.status, STATUSES)
        if self.kind and self.kind not in KINDS:
            raise unknown("kind", self.kind, KINDS)
        if self.last is not None and self.last < 1:
            raise UsageError(f"--last must be at least 1, not {self.last}")
        if self.since:
            moment(self.since)

    def apply(self, found: Sequence[Stored]) -> list[Stored]:
        earliest = moment(self.since) if self.since else None
        kept = [item for item in found if self._matches(item, earliest)]
        return kept[-self.last :] if self.last else kept

    def _matches(self, item: Stored, earliest: float | None) -> bool:
        if self.status and item.status != self.status:
            return False
        if self.kind and item.kind != self.kind:
            return False
        if earliest is not None and (item.started_at or 0.0) < earliest:
            return False
        if self.model and not _matches(self.model, [item.model]):
            return False
        return not self.strategy or _matches(self.strategy, item.strategies)


def moment(text: str) -> float:
    """Return seconds since 1970 for a date, a date with time, or an age."""
    if _AGE.fullmatch(text.strip()):
        return time.time() - age_s(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise UsageError(f"{text!r} is neither a date (2026-01-31, 2026-01-31T12:00) nor an age (12h, 7d)") from None


def age_s(text: str) -> float:
    """Return the seconds of an age such as `30m`, `12h`, `7d` or `2w`."""
    match = _AGE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"{text!r} is not an age: a number and m, h, d or w, such as 30d")
    return float(match[1]) * _SECONDS[match[2]]


def _matches(pattern: str, names: list[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for name in names)


def check_deletable(folder: Path, out: Path) -> Stored:
    """Return the run or study in a folder; UsageError if the folder may not be deleted."""
    if folder.is_symlink():
        raise UsageError(f"{str(folder)!r} is a link, and links are not followed; name the folder itself")
    if not folder.is_dir():
        raise UsageError(f"{str(folder)!r} is not the folder of a run or a study; nothing was deleted")
    stored = read(folder)
    if any((folder / name).is_symlink() for name in (RUN_FILE, STUDY_FILE)):
        raise UsageError(f"{str(folder)!r} is neither a run nor a study; nothing was deleted")
    whole = folder.resolve()
    for other, name in ((Path.cwd(), "the current folder"), (out, "the folder of all runs")):
        if other.resolve().is_relative_to(whole):
            raise UsageError(f"{str(folder)!r} holds {name}; nothing was deleted")
    return stored


def delete(folder: Path) -> None:
    """Delete a folder; it is renamed to a hidden one first, so that no reader finds half of it."""
    try:
        hidden = Path(tempfile.mkdtemp(dir=folder.parent, **hidden_name(folder.name)))
        folder.rename(hidden)
        shutil.rmtree(hidden)  # deletes links, not their targets
    except OSError as error:
        raise RunError(f"{str(folder)!r} cannot be deleted: {error.strerror}") from error


def size_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        total += sum(os.lstat(os.path.join(path, name)).st_size for name in names)
    return total
