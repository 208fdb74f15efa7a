"""Resources and network bytes of a run, from the samples and counters of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.results import Json, NetworkUse, Resources, WorkerNetwork, WorkerResources
from paceline.results.worker_report import WorkerReport

Sample = Json  # one `sample` line of a worker

SAMPLE_POINTS = 400
COLUMNS = (
    "cpu_percent",
    "rss_bytes",
    "disk_read_bytes",
    "disk_written_bytes",
    "network_sent_bytes",
    "network_received_bytes",
    "gpu_percent",
    "gpu_memory_bytes",
)
# Kernel counters besides the payload, by field of WorkerNetwork.
_OTHER_COUNTERS = {
    "retransmitted_bytes": "network_retransmitted_bytes",
    "header_bytes": "network_header_bytes",
    "node_sent_bytes": "node_sent_bytes",
    "node_received_bytes": "node_received_bytes",
}


class ThinnedRows:
    """At most `most` of the added rows, evenly spread, with the first and the last."""

    def __init__(self, most: int) -> None:
        assert most >= 4, "halving needs at least 4 rows to keep the first and the last"
        self._most, self._stride, self._added = most, 1, 0
        self._rows: list[Sample] = []
        self._last: Sample | None = None

    def add(self, row: Sample) -> None:
        if self._added % self._stride == 0:
            if len(self._rows) == self._most - 1:
                del self._rows[1::2]
                self._stride *= 2
            if self._added % self._stride == 0:
                self._rows.append(row)
        self._added += 1
        self._last = row

    @property
    def rows(self) -> list[Sample]:
        if self._last is None or self._rows[-1] is self._last:
            return list(self._rows)
        return [*self._rows, self._last]


def thinned(rows: Sequence[Sample], most: int = SAMPLE_POINTS) -> list[Sample]:
    """Return at most `most` rows, evenly spread."""
    kept = ThinnedRows(most)
    for row in rows:
        kept.add(row)
    return kept.rows


def resources(samples: Mapping[int, Sequence[Sample]]) -> Resources | None:
    """Return the samples of every rank over time; None without samples."""
    per_worker = [_over_time(rank, thinned(rows)) for rank, rows in sorted(samples.items()) if rows]
    return Resources(per_worker=per_worker) if per_worker else None


def _over_time(rank: int, rows: list[Sample]) -> WorkerResources:
    columns: dict[str, list[Any] | None] = {}
    for name in COLUMNS:
        values = [row.get(name) for row in rows]
        columns[name] = None if all(value is None for value in values) else values
    return WorkerResources(
        rank=rank,
        time_s=[row["time_s"] for row in rows],
        **columns,
        peak_rss_bytes=max((row["peak_rss_bytes"] for row in rows), default=None),
    )


def network(workers: Sequence[WorkerReport]) -> NetworkUse | None:
    """Return payload bytes of the training steps: counted by the kernel, by the comm, and predicted by the strategy.

    Bytes through shared memory are separate. None without kernel counters.
    """
    rows = [_network_row(worker) for worker in workers]
    return NetworkUse(per_worker=rows) if any(row.kernel_sent_bytes is not None for row in rows) else None


def _network_row(worker: WorkerReport) -> WorkerNetwork:
    kernel = worker.at_last_step or {}
    return WorkerNetwork(
        rank=worker.rank,
        kernel_sent_bytes=kernel.get("network_sent_bytes"),
        kernel_received_bytes=kernel.get("network_received_bytes"),
        comm_sent_bytes=worker.network_sent_bytes,
        comm_received_bytes=worker.network_received_bytes,
        predicted_sent_bytes=worker.predicted_network_sent_bytes,
        memory_bytes=worker.memory_sent_bytes,
        **{name: kernel.get(source) for name, source in _OTHER_COUNTERS.items()},
    )
