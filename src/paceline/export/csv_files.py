"""One CSV file per kind of line, each with a header."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from paceline.export.tables import TABLES, ExportSource, Value, rows

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what makes a spreadsheet run a text


def write(sources: Sequence[ExportSource], folder: Path) -> None:
    with ExitStack() as stack:
        writers = {}
        for table in TABLES:
            file = stack.enter_context((folder / f"{table.name}.csv").open("w", encoding="utf-8", newline=""))
            writers[table] = csv.writer(file)
            writers[table].writerow(table.columns)
        for table, row in rows(sources):
            writers[table].writerow([_harmless(value) for value in row])


def _harmless(value: Value) -> Value:
    """Numbers as they are; a text that a spreadsheet would take for a formula is marked as text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
