"""What each worker took from its machine over a run: processor, memory, network, disk. Pure: values in, values out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.results import RunResult, WorkerNetwork, WorkerResources
from paceline.results.study import WorkerLoad


def load_of(result: RunResult) -> list[WorkerLoad]:
    """A row per worker; None where something was not measured."""
    samples = [] if result.resources is None else result.resources.per_worker
    counted = {} if result.network is None else {row.rank: row for row in result.network.per_worker}
    return [_load(row, counted.get(row.rank)) for row in sorted(samples, key=lambda row: row.rank)]


def _load(samples: WorkerResources, counted: WorkerNetwork | None) -> WorkerLoad:
    busy = [value for value in samples.cpu_percent or [] if value is not None]
    return WorkerLoad(
        rank=samples.rank,
        cpu_percent=statistics.fmean(busy) if busy else None,
        peak_rss_bytes=samples.peak_rss_bytes,
        network_sent_bytes=None if counted is None else counted.kernel_sent_bytes,
        network_received_bytes=None if counted is None else counted.kernel_received_bytes,
        disk_read_bytes=_last(samples.disk_read_bytes),
        disk_written_bytes=_last(samples.disk_written_bytes),
    )


def _last(values: Sequence[int | None] | None) -> int | None:
    """A counter's value at the end."""
    found = [value for value in values or [] if value is not None]
    return found[-1] if found else None
