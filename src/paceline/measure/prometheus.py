"""Live figures of workers as Prometheus reads them: a text of its own format, served over HTTP."""

from __future__ import annotations

import math
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from paceline.errors import UsageError
from paceline.results.value import Json

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/", "/metrics")


@dataclass(frozen=True)
class Metric:
    """One figure of a worker: its name, what it means, and where an event holds it."""

    name: str
    kind: str  # gauge or counter
    help: str
    path: tuple[str, ...]

    def value_in(self, event: Json) -> float | None:
        found: Any = event
        for key in self.path:
            found = found.get(key) if isinstance(found, dict) else None
        return found if isinstance(found, int | float) else None


METRICS = (
    Metric("paceline_step", "gauge", "Steps that the worker has done in this run.", ("step",)),
    Metric("paceline_steps", "gauge", "Steps that the run is to have.", ("total_steps",)),
    Metric("paceline_loss", "gauge", "Training loss of the worker's last step.", ("loss",)),
    Metric("paceline_accuracy", "gauge", "Training accuracy over its last steps, as a fraction.", ("accuracy",)),
    Metric("paceline_samples_per_second", "gauge", "Samples that the worker trains on per second.", ("samples_per_s",)),
    Metric("paceline_in_comm_percent", "gauge", "Time that it stood still inside the comm.", ("in_comm_percent",)),
    Metric("paceline_comm_sent_bytes_total", "counter", "Payload handed to the comm.", ("sent_bytes",)),
    Metric("paceline_cpu_percent", "gauge", "CPU time of its process, 100 for a core.", ("resources", "cpu_percent")),
    Metric("paceline_memory_bytes", "gauge", "Resident memory of its process.", ("resources", "rss_bytes")),
    Metric("paceline_memory_peak_bytes", "gauge", "Most of it in this run.", ("resources", "peak_rss_bytes")),
    Metric("paceline_disk_read_bytes_total", "counter", "Read from disks.", ("resources", "disk_read_bytes")),
    Metric("paceline_disk_written_bytes_total", "counter", "Written to files.", ("resources", "disk_written_bytes")),
    Metric(
        "paceline_network_sent_bytes_total",
        "counter",
        "Payload on its TCP connections, by the kernel's count.",
        ("resources", "network_sent_bytes"),
    ),
    Metric(
        "paceline_network_received_bytes_total",
        "counter",
        "Payload from its TCP connections, by the kernel's count.",
        ("resources", "network_received_bytes"),
    ),
    Metric("paceline_gpu_percent", "gauge", "How busy its GPU is.", ("resources", "gpu_percent")),
    Metric("paceline_gpu_memory_bytes", "gauge", "Memory that it holds there.", ("resources", "gpu_memory_bytes")),
)


class MetricsBoard:
    """The latest event of every worker under every strategy; any thread may write and read."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], Json] = {}
        self._finished: dict[str, int] = {}
        self._running: dict[str, bool] = {}
        self._lock = threading.Lock()

    def put(self, strategy: str, event: Json) -> None:
        """Take note of an event; one that is about no worker's step is left out."""
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

    def text(self) -> str:
        with self._lock:
            events, finished = sorted(self._events.items()), sorted(self._finished.items())
            running = sorted(self._running.items())
        lines: list[str] = []
        for metric in METRICS:
            values = [
                ({"strategy": strategy, "rank": str(rank)}, metric.value_in(event))
                for (strategy, rank), event in events
            ]
            lines += _family(metric.name, metric.kind, metric.help, values)
        now = [({"strategy": strategy}, float(is_running)) for strategy, is_running in running]
        lines += _family("paceline_running", "gauge", "1 while a run under this strategy lasts.", now)
        runs = [({"strategy": strategy}, float(count)) for strategy, count in finished]
        lines += _family("paceline_runs_finished_total", "counter", "Runs that came to their end.", runs)
        return "".join(f"{line}\n" for line in lines)


def _family(name: str, kind: str, help: str, values: Iterable[tuple[dict[str, str], float | None]]) -> list[str]:
    """A metric with its values; nothing at all where there is none, as for the GPU of a worker without one."""
    lines = []
    for labels, value in values:
        if value is not None:
            inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
            lines.append(f"{name}{{{inside}}} {_number(value)}")
    return [f"# HELP {name} {help}", f"# TYPE {name} {kind}", *lines] if lines else []


def escape(text: str) -> str:
    """A label's value as the format wants it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


class MetricsServer:
    """Serves a text until it is closed. Port 0 takes a free one; `address` says which."""

    def __init__(self, text: Callable[[], str], *, host: str, port: int) -> None:
        handler = type("_Handler", (_Handler,), {"text": staticmethod(text)})
        kind = _Server6 if ":" in host else _Server
        try:
            self._server = kind((host, port), handler)
        except OSError as error:
            raise UsageError(f"metrics cannot be served on {host}, port {port}: {error.strerror or error}") from None
        # The argument is how long closing may take.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        shown = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://[{shown}]:{port}/metrics" if ":" in shown else f"http://{shown}:{port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # a reader that never ends does not keep the command alive

    def server_bind(self) -> None:
        """As the base's, but nobody is asked for this host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that left is its own affair; anything else is ours and is shown."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    text: ClassVar[Callable[[], str]]
    timeout = 10  # seconds for somebody who connects and says nothing
    server_version = "paceline"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] not in PATHS:
            self.send_error(404, "there is only /metrics here")
            return
        body = type(self).text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal belongs to the run's progress."""
