"""Live metrics in the Prometheus format, and their HTTP server."""

from __future__ import annotations

import math
import re
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import generate_latest

from helpers import REPOSITORY
from paceline.errors import UsageError
from paceline.measure.prometheus import METRICS, MetricsBoard, metrics_server

LINE = re.compile(r'^([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\S+)$')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def event(rank: int, **changes: Any) -> dict[str, Any]:
    resources = {"cpu_percent": 99.5, "rss_bytes": 1000, "peak_rss_bytes": 2000, "disk_written_bytes": 3}
    resources |= {"network_sent_bytes": 10**12, "gpu_percent": None}
    plain = {"kind": "progress", "rank": rank, "step": 7, "total_steps": 10, "loss": 0.25, "accuracy": None}
    plain |= {"samples_per_s": 12.5, "in_comm_percent": 3.0, "sent_bytes": 44, "resources": resources}
    return {**plain, **changes}


def text_of(board: MetricsBoard) -> str:
    return generate_latest(board).decode()


def parsed(text: str) -> dict[tuple[str, str, str], float]:
    """Values by name, strategy and rank; raises where a line is not of the format."""
    found: dict[tuple[str, str, str], float] = {}
    described: set[str] = set()
    typed: set[str] = set()
    assert text.endswith("\n") or not text
    for line in text.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            assert rest
            (described if what == "HELP" else typed).add(name)
            assert what == "HELP" or rest == ("counter" if name.endswith("_total") else "gauge")
            continue
        matched = LINE.match(line)
        assert matched, line
        name, inside, value = matched.groups()
        assert name in described & typed
        labels = dict(LABEL.findall(inside))
        key = (name, labels["strategy"], labels.get("rank", ""))
        assert key not in found
        found[key] = float(value)
    return found


def test_every_figure_of_every_worker() -> None:
    board = MetricsBoard()
    assert text_of(board) == ""
    board.start("ring")
    for rank in (1, 0):
        board.put("ring", event(rank, step=5 + rank))
    board.put("ring", {"kind": "warning", "text": "about nobody"})
    found = parsed(text_of(board))
    assert found["paceline_step", "ring", "0"] == 5
    assert found["paceline_step", "ring", "1"] == 6
    assert found["paceline_loss", "ring", "0"] == 0.25
    assert found["paceline_network_sent_bytes_total", "ring", "1"] == 10**12
    assert found["paceline_cpu_percent", "ring", "1"] == 99.5
    assert found["paceline_running", "ring", ""] == 1
    # What nobody measured is not there at all.
    assert not {name for name, _, _ in found} & {"paceline_accuracy", "paceline_gpu_percent"}
    board.finish("ring")
    found = parsed(text_of(board))
    assert found["paceline_running", "ring", ""] == 0
    assert found["paceline_runs_finished_total", "ring", ""] == 1


def test_workers_without_samples_are_shown_without_resources() -> None:
    board = MetricsBoard()
    board.put("ring", event(0, resources=None))
    names = {name for name, _, _ in parsed(text_of(board))}
    assert "paceline_step" in names
    assert "paceline_cpu_percent" not in names


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
def test_a_loss_that_is_no_number_is_said_as_the_format_says_it(value: float, text: str) -> None:
    board = MetricsBoard()
    board.put("ring", event(0, loss=value))
    assert f'paceline_loss{{rank="0",strategy="ring"}} {text}\n' in text_of(board)
    parsed(text_of(board))


def test_names_that_users_give_are_escaped() -> None:
    board = MetricsBoard()
    board.put('ring"} 1\nevil{x="\\', event(0))
    found = parsed(text_of(board))
    assert {strategy for _, strategy, _ in found} == {r"ring\"} 1\nevil{x=\"\\"}
    assert "\nevil" not in text_of(board)


def test_names_follow_the_customs() -> None:
    for metric in METRICS:
        assert metric.name.startswith("paceline_")
        assert "\n" not in metric.help


@pytest.fixture
def address() -> Iterator[str]:
    board = MetricsBoard()
    board.put("ring", event(0))
    with metrics_server(board, host="127.0.0.1", port=0) as found:
        yield found


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2].partition("/")[0])


def test_metrics_are_served_on_loopback(address: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", address)
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        found = parsed(answer.read().decode())
    assert found["paceline_step", "ring", "0"] == 7


def test_metrics_are_served_on_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this host")
    with metrics_server(MetricsBoard(), host="::1", port=0) as address:
        assert re.fullmatch(r"http://\[::1\]:\d+/metrics", address)
        with urllib.request.urlopen(address, timeout=10) as answer:
            assert answer.read() == b""


def test_the_server_ends_with_the_block() -> None:
    with metrics_server(MetricsBoard(), host="127.0.0.1", port=0) as address:
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port_of(address)), timeout=10)


def test_clients_that_disconnect_print_no_traceback(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (b"GET /metrics HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", port_of(address))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
            client.sendall(words)
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.status == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_busy_port_is_a_usage_error(address: str) -> None:
    port = port_of(address)
    with (
        pytest.raises(UsageError, match=rf"^metrics cannot be served on 127.0.0.1, port {port}: .*--metrics-port"),
        metrics_server(MetricsBoard(), host="127.0.0.1", port=port),
    ):
        pass


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_host_is_a_usage_error(host: str) -> None:
    with (
        pytest.raises(UsageError, match=rf"^metrics cannot be served on {re.escape(host)}, port 0: "),
        metrics_server(MetricsBoard(), host=host, port=0),
    ):
        pass


def test_every_metric_is_described() -> None:
    page = (REPOSITORY / "docs" / "resources.md").read_text()
    for name in [*(metric.name for metric in METRICS), "paceline_running", "paceline_runs_finished_total"]:
        assert f"`{name}`" in page, name
