"""Live metrics of workers in the Prometheus format, served over HTTP while a command runs.

Importing this module imports prometheus_client, so this module is imported only with --metrics-port.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from paceline.errors import UsageError
from paceline.results.value import Json


@dataclass(frozen=True)
class WorkerMetric:
    """A worker's metric: its name, help text, and path of keys in a progress event.

    The name of a counter ends in _total. Metrics with other names are gauges.
    """

    name: str
    help: str
    path: tuple[str, ...]

    def family(self, events: Iterable[tuple[tuple[str, int], Json]]) -> GaugeMetricFamily | CounterMetricFamily:
        """Return a Prometheus metric family with a value for each event that has this metric."""
        kind = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        family = kind(self.name, self.help, labels=["strategy", "rank"])
        for (strategy, rank), event in events:
            value: Any = event
            for key in self.path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                family.add_metric([strategy, str(rank)], value)
        return family


METRICS = (
    WorkerMetric("paceline_step", "Steps that the worker has finished in this run.", ("step",)),
    WorkerMetric("paceline_steps", "Steps of the whole run.", ("total_steps",)),
    WorkerMetric("paceline_loss", "Training loss of the worker's last step.", ("loss",)),
    WorkerMetric("paceline_accuracy", "Training accuracy over the last steps, as a fraction.", ("accuracy",)),
    WorkerMetric("paceline_samples_per_second", "Samples per second of the worker.", ("samples_per_s",)),
    WorkerMetric("paceline_in_comm_percent", "Share of time blocked in communication.", ("in_comm_percent",)),
    WorkerMetric("paceline_comm_sent_bytes_total", "Payload handed to the communication backend.", ("sent_bytes",)),
    WorkerMetric("paceline_cpu_percent", "CPU time of the process; 100 is one core.", ("resources", "cpu_percent")),
    WorkerMetric("paceline_memory_bytes", "Resident memory of the process.", ("resources", "rss_bytes")),
    WorkerMetric("paceline_memory_peak_bytes", "Peak resident memory in this run.", ("resources", "peak_rss_bytes")),
    WorkerMetric("paceline_disk_read_bytes_total", "Bytes read from disks.", ("resources", "disk_read_bytes")),
    WorkerMetric("paceline_disk_written_bytes_total", "Bytes written to files.", ("resources", "disk_written_bytes")),
    WorkerMetric(
        "paceline_network_sent_bytes_total",
        "Payload sent on TCP connections, counted by the kernel.",
        ("resources", "network_sent_bytes"),
    ),
    WorkerMetric(
        "paceline_network_received_bytes_total",
        "Payload received on TCP connections, counted by the kernel.",
        ("resources", "network_received_bytes"),
    ),
    WorkerMetric("paceline_gpu_percent", "Utilisation of the worker's GPU.", ("resources", "gpu_percent")),
    WorkerMetric("paceline_gpu_memory_bytes", "GPU memory of the worker.", ("resources", "gpu_memory_bytes")),
)


class MetricsBoard(Collector):
    """Thread-safe Prometheus collector of each worker's last progress event, by strategy."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], Json] = {}
        self._finished: dict[str, int] = {}
        self._running: dict[str, bool] = {}
        self._lock = threading.Lock()

    def put(self, strategy: str, event: Json) -> None:
        """Store a worker's progress event. Other events, such as warnings, are ignored."""
        if "rank" in event and "step" in event:
            with self._lock:
                self._events[strategy, event["rank"]] = event

    def start(self, strategy: str) -> None:
        with self._lock:
            self._running[strategy] = True

    def finish(self, strategy: str) -> None:
        with self._lock:
            self._running[strategy] = False
            self._finished[strategy] = self._finished.get(strategy, 0) + 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that have values. Without a GPU, for example, GPU metrics are left out."""
        with self._lock:
            events, finished = sorted(self._events.items()), sorted(self._finished.items())
            running = sorted(self._running.items())
        families = [metric.family(events) for metric in METRICS]
        is_running = GaugeMetricFamily("paceline_running", "1 while this strategy runs, else 0.", labels=["strategy"])
        for strategy, value in running:
            is_running.add_metric([strategy], value)
        runs = CounterMetricFamily("paceline_runs_finished_total", "Finished runs.", labels=["strategy"])
        for strategy, count in finished:
            runs.add_metric([strategy], count)
        yield from (family for family in [*families, is_running, runs] if family.samples)


@contextmanager
def metrics_server(board: MetricsBoard, *, host: str, port: int) -> Iterator[str]:
    """Serve the board's metrics over HTTP until the `with` block ends, and yield their URL.

    Port 0 selects a free port. Raises UsageError if the port cannot be used.
    """
    registry = CollectorRegistry()
    registry.register(board)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(
            f"metrics cannot be served on {host}, port {port}: {error.strerror or error}; "
            "choose another --metrics-port (0 takes a free port) or --metrics-host"
        ) from None

    def report_error(request: Any, client_address: Any) -> None:
        # Without this, a client that disconnects early would cause a traceback in the terminal of the run.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            WSGIServer.handle_error(server, request, client_address)

    server.handle_error = report_error  # type: ignore[method-assign]
    try:
        bound_host = str(server.server_address[0])
        yield f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
