"""The lines that workers wrote, one at a time: files may be larger than memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

Line = dict[str, Any]


def worker_files(folder: Path) -> dict[int, Path]:
    """The file of every worker of a run, by rank."""
    found = {int(file.stem): file for file in (folder / "workers").glob("*.jsonl") if file.stem.isdigit()}
    return dict(sorted(found.items()))


def worker_lines(file: Path) -> Iterator[Line]:
    """Every line with its `kind`. A last line that was never finished is left out: the worker was ended in it."""
    with file.open(encoding="utf-8") as text:
        for number, line in enumerate(text, start=1):
            try:
                value = json.loads(line)
            except ValueError:
                if not line.endswith("\n"):
                    return
                raise UsageError(f"{str(file)!r} is damaged in line {number}") from None
            yield {"kind": "step", **value}  # runs of before have lines of steps alone, which do not say so


def run_folders(folder: Path) -> list[Path]:
    """A run itself, or the runs of a study."""
    inner = sorted(path.parent for path in (folder / "runs").glob("*/summary.json"))
    return inner or [folder]
