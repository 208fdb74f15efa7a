"""Parquet export: one file per table, written in groups of rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.export.tables import TABLES, CellValue, ExportSource, ExportTable, rows

GROUP_ROWS = 20_000  # rows of one table kept in memory
_TYPES = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def write(sources: Sequence[ExportSource], folder: Path) -> None:
    with ExitStack() as stack:
        files = {table: stack.enter_context(_File(table, folder)) for table in TABLES}
        for table, row in rows(sources):
            files[table].add(row)


class _File:
    """A Parquet file that is being written. It buffers up to GROUP_ROWS rows and writes them as one row group."""

    def __init__(self, table: ExportTable, folder: Path) -> None:
        self._schema = pa.schema([(name, _TYPES[kind]) for name, kind in table.columns.items()])
        self._writer = pq.ParquetWriter(folder / f"{table.name}.parquet", self._schema)
        self._rows: list[list[CellValue]] = []

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: object, *_: Any) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, row: list[CellValue]) -> None:
        self._rows.append(row)
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = dict(zip(self._schema.names, zip(*self._rows, strict=True), strict=True))
            self._writer.write_table(pa.table(columns, schema=self._schema))
            self._rows = []
