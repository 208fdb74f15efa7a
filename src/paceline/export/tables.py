"""Workers' lines as tables with fixed columns, one line at a time: a run may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.worker_files import worker_files, worker_lines

Value = int | float | str | None


@dataclass(frozen=True)
class Source:
    """One run to be given away."""

    name: str
    label: str  # its strategy, as the user wrote it
    folder: Path
    started: float  # seconds since 1970
    recipe: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Lines of one kind: their columns with types; what a line does not have stays empty."""

    name: str
    kind: str
    own_columns: Mapping[str, type]

    @property
    def columns(self) -> dict[str, type]:
        return {"run": str, "label": str, "rank": int, **self.own_columns}

    def row(self, source: Source, rank: int, line: Mapping[str, Any]) -> list[Value]:
        values = (None if line.get(name) is None else kind(line[name]) for name, kind in self.own_columns.items())
        return [source.name, source.label, rank, *values]


_WHEN = {"begin_s": float, "end_s": float}
_PEER = {"peer": int, "tag": int}
TABLES = (
    Table(
        "steps",
        "step",
        {
            "step": int,
            "begin_s": float,
            "iteration_s": float,
            "data_s": float,
            "loss": float,
            "num_right": int,
            "num_answers": int,
            "num_samples": int,
            "sent_bytes": int,
        },
    ),
    Table("spans", "span", {"step": int, "phase": str, **_WHEN}),
    Table("ops", "op", {"step": int, "number": int, "op": str, "bytes": int, **_PEER, "medium": str, **_WHEN}),
    Table("blocked", "blocked", {"step": int, "number": int, "op": str, **_PEER, "busy": bool, **_WHEN}),
    Table(
        "samples",
        "sample",
        {
            "time_s": float,
            "cpu_percent": float,
            "rss_bytes": int,
            "peak_rss_bytes": int,
            "disk_read_bytes": int,
            "disk_written_bytes": int,
            "block_written_bytes": int,
            "network_sent_bytes": int,
            "network_received_bytes": int,
            "network_retransmitted_bytes": int,
            "network_header_bytes": int,
            "node_sent_bytes": int,
            "node_received_bytes": int,
            "gpu_percent": float,
            "gpu_memory_bytes": int,
        },
    ),
    Table("workers", "head", {"host": str, "pid": int, "clock_offset_s": float, "clock_error_s": float}),
)
_BY_KIND = {table.kind: table for table in TABLES}


def rows(sources: Sequence[Source]) -> Iterator[tuple[Table, list[Value]]]:
    """Every line of every worker that belongs to a table."""
    for source in sources:
        for rank, file in worker_files(source.folder).items():
            for line in worker_lines(file):
                table = _BY_KIND.get(line["kind"])
                if table is not None:
                    yield table, table.row(source, rank, line)
