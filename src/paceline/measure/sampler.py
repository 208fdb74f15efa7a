"""Sample a worker's resource usage in a background thread, and summarise the samples."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.measure.observer import Observer, RunFacts
from paceline.measure.resource_usage import ResourceProbe
from paceline.results import Json, NetworkUse, Resources, WorkerNetwork, WorkerResources
from paceline.results.worker_report import WorkerReport

MOST_COST = 0.003  # share of a CPU core for sampling; a worker with thousands of open files is sampled less often
DRAIN_S = 0.1  # longest wait for bytes that the kernel has not sent
POLL_S = 0.005  # time between two readings of the unsent bytes
SAMPLE_POINTS = 400  # limit of samples per worker in a result
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


class Sampler:
    """Emits up to `hz` resource samples per second, and one more sample at `start` and at `stop`."""

    def __init__(
        self,
        emit: Callable[[Json], None],
        *,
        hz: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
        device: Any = None,
    ) -> None:
        """Create a sampler. `emit` receives samples, `clock` returns their times, and `device` is a torch device."""
        assert hz > 0, "a sampler needs a positive rate"
        self._emit, self._interval_s, self._clock, self._device = emit, 1 / hz, clock, device
        self._ended = threading.Event()
        self._is_paused = False
        self._reading = threading.Lock()
        self._probe: ResourceProbe | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.latest: Json | None = None
        self.cost_s = 0.0  # CPU time of all samples

    def start(self) -> None:
        self._probe = ResourceProbe(self._device)
        self.sample()
        self._thread.start()

    def pause(self) -> None:
        """Stop periodic samples until `resume` is called."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def stop(self) -> None:
        if self._probe is None or self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self.sample()
        self._probe.close()

    def sample(self) -> Json:
        """Take a sample now, emit it, and return it. Thread-safe."""
        assert self._probe is not None, "the sampler was not started"
        with self._reading:
            before = time.thread_time()
            row = {"kind": "sample", "time_s": self._clock(), **self._probe.read()}
            self.latest = row
            self._emit(row)
            self.cost_s += time.thread_time() - before
        return row

    def sample_drained(self) -> Json:
        """Wait until the kernel has sent all bytes, at most DRAIN_S seconds; then take, emit and return a sample."""
        assert self._probe is not None, "the sampler was not started"
        deadline = time.perf_counter() + DRAIN_S
        while self._probe.unsent_bytes() and time.perf_counter() < deadline:
            time.sleep(POLL_S)
        return self.sample()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._ended.wait(wait_s):
            if self._is_paused:
                continue
            before = self.cost_s
            self.sample()
            wait_s = max(self._interval_s, (self.cost_s - before) / MOST_COST)


class ThinnedRows:
    """Collects rows, but keeps at most `most` of them: the first, the last and evenly spaced rows in between."""

    def __init__(self, most: int) -> None:
        assert most >= 4, "halving needs at least 4 rows to keep the first and the last"
        self._most, self._stride, self._added = most, 1, 0
        self._rows: list[Json] = []
        self._last: Json | None = None

    def add(self, row: Json) -> None:
        if self._added % self._stride == 0:
            if len(self._rows) == self._most - 1:
                del self._rows[1::2]
                self._stride *= 2
            if self._added % self._stride == 0:
                self._rows.append(row)
        self._added += 1
        self._last = row

    @property
    def rows(self) -> list[Json]:
        if self._last is None or self._rows[-1] is self._last:
            return list(self._rows)
        return [*self._rows, self._last]


class ResourceObserver(Observer):
    """Observer that samples a worker's resources, and reports at most SAMPLE_POINTS samples."""

    def __init__(self, *, hz: float, device: Any = None) -> None:
        self._sampler = Sampler(self._emit, hz=hz, clock=self._run_time, device=device)
        self._thinned = ThinnedRows(SAMPLE_POINTS)
        self._at_last_step: Json | None = None

    @property
    def latest(self) -> Json | None:
        return self._sampler.latest

    def run_begins(self, facts: RunFacts) -> None:
        self._facts = facts
        self._sampler.start()

    def pause(self) -> None:
        self._sampler.pause()

    def resume(self) -> None:
        self._sampler.resume()

    def steps_end(self) -> None:
        self._at_last_step = self._sampler.sample_drained()

    def run_ends(self) -> None:
        self._sampler.stop()

    def report_fields(self) -> Json:
        samples, cost_s = self._thinned.rows, self._sampler.cost_s
        return {"samples": samples, "at_last_step": self._at_last_step, "sampling_s": cost_s}

    def _emit(self, row: Json) -> None:
        self._thinned.add(row)
        self._facts.write(row)

    def _run_time(self) -> float:
        return self._facts.run_time(time.perf_counter())


def summarise_resources(samples: Mapping[int, Sequence[Json]]) -> Resources | None:
    """Return the resources of every rank over time, or None if there are no samples."""
    per_worker = [_columns_of(rank, rows) for rank, rows in sorted(samples.items()) if rows]
    return Resources(per_worker=per_worker) if per_worker else None


def _columns_of(rank: int, rows: Sequence[Json]) -> WorkerResources:
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


def summarise_network(workers: Sequence[WorkerReport]) -> NetworkUse | None:
    """Return the bytes that each worker sent and received in the training steps.

    The result is None if all workers lack the kernel's counts. For payload over the network, the result has the
    kernel's count, the comm's count and the strategy's prediction. Bytes through shared memory have a separate field.
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
        retransmitted_bytes=kernel.get("network_retransmitted_bytes"),
        header_bytes=kernel.get("network_header_bytes"),
        node_sent_bytes=kernel.get("node_sent_bytes"),
        node_received_bytes=kernel.get("node_received_bytes"),
    )
