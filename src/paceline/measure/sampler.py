"""Resource sampling of a worker in a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from paceline.measure.network_counters import Connections, Traffic, interface_bytes, is_in_own_namespace
from paceline.measure.observer import Observer, Row, RunFacts
from paceline.measure.resource_meters import Usage, open_gpu, open_meter
from paceline.measure.resource_summary import SAMPLE_POINTS, ThinnedRows

MOST_COST = 0.003  # of a core: a worker with thousands of open files is sampled less often
LEAST_S = 0.02  # shortest period for a CPU percentage; below it the last value is kept
DRAIN_S = 0.1  # longest wait for bytes that the kernel has not sent
LOOK_AGAIN_S = 0.005


class ResourceProbe:
    """Reads all resources as the fields of a `sample` line; bytes count from the creation of the probe."""

    def __init__(self, device: Any = None) -> None:
        self._gpu = open_gpu(device)
        self._connections = Connections.open()
        self._has_interfaces = is_in_own_namespace()
        self._meter = open_meter()
        self._written = 0
        self._first = self._meter.read()
        self._first_traffic = self._connections.read() if self._connections else None
        self._first_interfaces = interface_bytes() if self._has_interfaces else (0, 0)
        self._last_at, self._last_cpu_s = self._first.at_s, self._first.cpu_s
        self._percent: float | None = None

    def read(self) -> Row:
        # Files before the network: bytes sent in between can lower the file bytes, never raise them.
        usage = self._meter.read()
        row = {
            "cpu_percent": self._cpu_percent(usage.cpu_s, usage.at_s),
            "rss_bytes": usage.rss_bytes,
            "peak_rss_bytes": usage.peak_rss_bytes,
        }
        traffic = self._traffic()
        percent, memory = self._gpu.read()
        return {
            **row,
            **self._files(usage, traffic),
            **_network(traffic),
            **self._node(),
            "gpu_percent": percent,
            "gpu_memory_bytes": memory,
        }

    def unsent_bytes(self) -> int:
        """Return the bytes that the kernel has not sent yet."""
        return self._connections.read().unsent_bytes if self._connections else 0

    def close(self) -> None:
        self._meter.close()

    def _cpu_percent(self, cpu_s: float, now: float) -> float | None:
        if now - self._last_at >= LEAST_S:
            self._percent = round(100 * (cpu_s - self._last_cpu_s) / (now - self._last_at), 2)
            self._last_at, self._last_cpu_s = now, cpu_s
        return self._percent

    def _traffic(self) -> Traffic | None:
        if self._connections is None or self._first_traffic is None:
            return None
        return self._connections.read().since(self._first_traffic)

    def _files(self, usage: Usage, traffic: Traffic | None) -> Row:
        """Return file bytes. Written bytes are the larger of block device writes and write calls (tmpfs has no device).

        Write calls include bytes to connections, which are subtracted.
        """
        first = self._first
        if usage.disk_read_bytes is None or usage.block_written_bytes is None:
            return {"disk_read_bytes": None, "disk_written_bytes": None, "block_written_bytes": None}
        assert first.disk_read_bytes is not None
        assert first.block_written_bytes is not None
        blocks = usage.block_written_bytes - first.block_written_bytes
        calls = 0
        if usage.write_calls_bytes is not None and first.write_calls_bytes is not None and traffic is not None:
            assert self._first_traffic is not None
            handed = traffic.sent_bytes + traffic.unsent_bytes - self._first_traffic.unsent_bytes
            calls = usage.write_calls_bytes - first.write_calls_bytes - handed
        self._written = max(self._written, blocks, calls)
        return {
            "disk_read_bytes": usage.disk_read_bytes - first.disk_read_bytes,
            "disk_written_bytes": self._written,
            "block_written_bytes": blocks,
        }

    def _node(self) -> Row:
        if not self._has_interfaces:
            return {"node_sent_bytes": None, "node_received_bytes": None}
        sent, received = interface_bytes()
        return {
            "node_sent_bytes": sent - self._first_interfaces[0],
            "node_received_bytes": received - self._first_interfaces[1],
        }


def _network(traffic: Traffic | None) -> Row:
    return {
        "network_sent_bytes": traffic.sent_bytes if traffic else None,
        "network_received_bytes": traffic.received_bytes if traffic else None,
        "network_retransmitted_bytes": traffic.retransmitted_bytes if traffic else None,
        "network_header_bytes": traffic.header_bytes if traffic else None,
    }


class Sampler:
    """Emits `sample` lines at `hz` between `start` and `stop`, and one at each of the two."""

    def __init__(
        self,
        emit: Callable[[Row], None],
        *,
        hz: float = 5.0,
        clock: Callable[[], float] = time.perf_counter,
        device: Any = None,
    ) -> None:
        """`clock` returns the line's `time_s`; `device` is the worker's torch device."""
        assert hz > 0, "a sampler needs a positive rate"
        self._emit, self._interval_s, self._clock, self._device = emit, 1 / hz, clock, device
        self._ended = threading.Event()
        self._is_paused = False
        self._reading = threading.Lock()
        self._probe: ResourceProbe | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.latest: Row | None = None
        self.cost_s = 0.0  # CPU time of all samples

    def start(self) -> None:
        self._probe = ResourceProbe(self._device)
        self.sample()
        self._thread.start()

    def pause(self) -> None:
        """Stop periodic samples until `resume`."""
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

    def sample(self) -> Row:
        """Emit and return a sample now. Thread-safe."""
        assert self._probe is not None, "the sampler was not started"
        with self._reading:
            before = time.thread_time()
            row = {"kind": "sample", "time_s": self._clock(), **self._probe.read()}
            self.latest = row
            self._emit(row)
            self.cost_s += time.thread_time() - before
        return row

    def sample_drained(self) -> Row:
        """Emit and return a sample once the kernel has sent all bytes, or after DRAIN_S."""
        assert self._probe is not None, "the sampler was not started"
        deadline = time.perf_counter() + DRAIN_S
        while self._probe.unsent_bytes() and time.perf_counter() < deadline:
            time.sleep(LOOK_AGAIN_S)
        return self.sample()

    def _run(self) -> None:
        wait_s = self._interval_s
        while not self._ended.wait(wait_s):
            if self._is_paused:
                continue
            before = self.cost_s
            self.sample()
            wait_s = max(self._interval_s, (self.cost_s - before) / MOST_COST)


class ResourceObserver(Observer):
    """Samples a worker during its run and keeps a thinned series for charts."""

    def __init__(self, *, hz: float, device: Any = None) -> None:
        self._hz, self._device = hz, device
        self._sampler: Sampler | None = None
        self._kept = ThinnedRows(SAMPLE_POINTS)
        self._at_last_step: Row | None = None

    @property
    def latest(self) -> Row | None:
        return self._sampler.latest if self._sampler else None

    def run_begins(self, facts: RunFacts) -> None:
        def emit(row: Row) -> None:
            self._kept.add(row)
            facts.write(row)

        def clock() -> float:
            return facts.run_time(time.perf_counter())

        self._sampler = Sampler(emit, hz=self._hz, clock=clock, device=self._device)
        self._sampler.start()

    def pause(self) -> None:
        if self._sampler is not None:
            self._sampler.pause()

    def resume(self) -> None:
        if self._sampler is not None:
            self._sampler.resume()

    def steps_end(self) -> None:
        if self._sampler is not None:
            self._at_last_step = self._sampler.sample_drained()

    def run_ends(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()

    def findings(self) -> Row:
        cost_s = self._sampler.cost_s if self._sampler else 0.0
        return {"samples": self._kept.rows, "at_last_step": self._at_last_step, "sampling_s": cost_s}
