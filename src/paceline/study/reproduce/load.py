"""What each worker took from its machine over a run: processor, memory, network, disk. Pure, values in, values out."""

from __future__ import annotations

import statistics
from typing import Any

from paceline.study.results import Result

Row = dict[str, Any]


def load_of(result: Result) -> list[Row]:
    """A row per worker; null where something was not measured."""
    samples = {row["rank"]: row for row in (result.get("resources") or {}).get("per_worker", [])}
    counted = {row["rank"]: row for row in (result.get("network") or {}).get("per_worker", [])}
    return [_row(rank, samples[rank], counted.get(rank, {})) for rank in sorted(samples)]


def _row(rank: int, samples: Row, counted: Row) -> Row:
    busy = [value for value in samples.get("cpu_percent") or [] if value is not None]
    return {
        "rank": rank,
        "cpu_percent": statistics.fmean(busy) if busy else None,
        "peak_rss_bytes": samples.get("peak_rss_bytes"),
        "network_sent_bytes": counted.get("kernel_sent_bytes"),
        "network_received_bytes": counted.get("kernel_received_bytes"),
        "disk_read_bytes": _last(samples.get("disk_read_bytes")),
        "disk_written_bytes": _last(samples.get("disk_written_bytes")),
    }


def _last(values: list[Any] | None) -> Any:
    """A counter's value at the end."""
    found = [value for value in values or [] if value is not None]
    return found[-1] if found else None
