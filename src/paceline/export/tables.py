"""Convert the measurements in workers' files for export: to tables with fixed columns, or to named scalars over steps.

Lines are read one at a time, because the files of a run may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paceline.worker_files import worker_files, worker_lines

CellValue = int | float | str | None


@dataclass(frozen=True)
class ExportSource:
    """A run to export."""

    name: str
    label: str  # the strategy with its options
    folder: Path
    started: float  # seconds since 1970
    recipe: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ExportTable:
    """Declaration of a table. Its rows are the lines of one `kind` in the workers' files, such as `step`.

    A value that a line lacks is None in the row.
    """

    name: str
    kind: str
    own_columns: Mapping[str, type]

    @property
    def columns(self) -> dict[str, type]:
        return {"run": str, "label": str, "rank": int, **self.own_columns}

    def row(self, source: ExportSource, rank: int, line: Mapping[str, Any]) -> list[CellValue]:
        values = (None if line.get(name) is None else kind(line[name]) for name, kind in self.own_columns.items())
        return [source.name, source.label, rank, *values]


_WHEN = {"begin_s": float, "end_s": float}
_PEER = {"peer": int, "tag": int}
TABLES = (
    ExportTable(
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
    ExportTable("spans", "span", {"step": int, "phase": str, **_WHEN}),
    ExportTable("ops", "op", {"step": int, "number": int, "op": str, "bytes": int, **_PEER, "medium": str, **_WHEN}),
    ExportTable("blocked", "blocked", {"step": int, "number": int, "op": str, **_PEER, "busy": bool, **_WHEN}),
    ExportTable(
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
    ExportTable("workers", "head", {"host": str, "pid": int, "clock_offset_s": float, "clock_error_s": float}),
)
_BY_KIND = {table.kind: table for table in TABLES}


def rows(sources: Sequence[ExportSource]) -> Iterator[tuple[ExportTable, list[CellValue]]]:
    """Yield the table and the row for each line of the workers' files, if the line's kind has a table."""
    for source in sources:
        for rank, file in worker_files(source.folder).items():
            for line in worker_lines(file):
                table = _BY_KIND.get(line["kind"])
                if table is not None:
                    yield table, table.row(source, rank, line)


OPEN_STEPS = 64  # number of newest steps whose sums are not yielded yet: an operation may end some steps after it began


class Scalar(NamedTuple):
    name: str
    value: float
    step: int
    time_s: float  # seconds since the run's start


def scalars(lines: Iterable[Mapping[str, Any]]) -> Iterator[Scalar]:
    """Yield one worker's named scalars: values per step, sums per phase and operation, and use of resources."""
    sums = _Sums()
    elapsed_s, num_samples = 0.0, 0
    for line in lines:
        if line["kind"] == "step":
            begin_s = line.get("begin_s", elapsed_s)  # old runs have no begin_s
            elapsed_s = begin_s + line["iteration_s"]
            yield from (Scalar(name, value, line["step"], elapsed_s) for name, value in _step_values(line).items())
        elif line["kind"] in ("span", "op", "blocked"):
            yield from sums.add(line)
        elif line["kind"] == "sample":
            for name, value in line.items():
                if name not in ("kind", "time_s") and value is not None:
                    yield Scalar(f"resources/{name}", float(value), num_samples, line["time_s"])
            num_samples += 1
    yield from sums.close(0)


def _step_values(line: Mapping[str, Any]) -> dict[str, float]:
    seconds, samples, answers = line["iteration_s"], line.get("num_samples"), line.get("num_answers")
    values = {"train/loss": line.get("loss"), "step/iteration_s": seconds, "step/data_s": line.get("data_s")}
    right = line.get("num_right")
    values["train/accuracy"] = right / answers if answers and right is not None else None
    values["step/samples_per_s"] = samples / seconds if seconds and samples is not None else None
    values["step/sent_bytes"] = line.get("sent_bytes")
    return {name: float(value) for name, value in values.items() if value is not None}


class _Sums:
    """Sums of seconds and bytes per step, by phase and operation. Only the newest steps are kept in memory."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, float]] = {}
        self._ends: dict[int, float] = {}

    def add(self, line: Mapping[str, Any]) -> Iterator[Scalar]:
        step, seconds = line["step"], line["end_s"] - line["begin_s"]
        sums = self._steps.setdefault(step, {})
        for name, value in _span_values(line, seconds).items():
            sums[name] = sums.get(name, 0.0) + value
        self._ends[step] = max(self._ends.get(step, 0.0), line["end_s"])
        yield from self.close(OPEN_STEPS)

    def close(self, num_open: int) -> Iterator[Scalar]:
        """Remove the oldest steps until `num_open` steps are left, and yield the sums of the removed ones."""
        while len(self._steps) > num_open:
            step = min(self._steps)
            end_s = self._ends.pop(step)
            yield from (Scalar(name, value, step, end_s) for name, value in self._steps.pop(step).items())


def _span_values(line: Mapping[str, Any], seconds: float) -> dict[str, float]:
    if line["kind"] == "span":
        return {f"phase/{line['phase']}_s": seconds}
    if line["kind"] == "blocked":
        return {"step/blocked_s": seconds}
    return {f"op/{line['op']}_s": seconds, f"op/{line['op']}_bytes": float(line["bytes"])}
