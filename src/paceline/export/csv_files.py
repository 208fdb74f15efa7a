"""CSV export: one file per table. Each file begins with a header."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from paceline.export.tables import TABLES, CellValue, ExportSource, rows

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates text that begins with one of these


def write(sources: Sequence[ExportSource], folder: Path) -> None:
    with ExitStack() as stack:
        writers = {}
        for table in TABLES:
            file = stack.enter_context((folder / f"{table.name}.csv").open("w", encoding="utf-8", newline=""))
            writers[table] = csv.writer(file)
            writers[table].writerow(table.columns)
        for table, row in rows(sources):
            writers[table].writerow([_without_formula(value) for value in row])


def _without_formula(value: CellValue) -> CellValue:
    """Put an apostrophe before text that a spreadsheet would evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
