"""Live figures as Prometheus text: the format, and the small server that gives it out."""

from __future__ import annotations

import math
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from helpers import REPOSITORY
from paceline.errors import UsageError
from paceline.measure.prometheus import METRICS, MetricsBoard, MetricsServer, escape

LINE = re.compile(r'^([a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\S+)$')
LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def event(rank: int, **changes: Any) -> dict[str, Any]:
    resources = {"cpu_percent": 99.5, "rss_bytes": 1000, "peak_rss_bytes": 2000, "disk_written_bytes": 3}
    resources |= {"network_sent_bytes": 10**12, "gpu_percent": None}
    plain = {"kind": "progress", "rank": rank, "step": 7, "total_steps": 10, "loss": 0.25, "accuracy": None}
    plain |= {"samples_per_s": 12.5, "in_comm_percent": 3.0, "sent_bytes": 44, "resources": resources}
    return {**plain, **changes}


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
    assert board.text() == ""
    board.start("ring")
    for rank in (1, 0):
        board.put("ring", event(rank, step=5 + rank))
    board.put("ring", {"kind": "warning", "text": "about nobody"})
    found = parsed(board.text())
    assert found["paceline_step", "ring", "0"] == 5
    assert found["paceline_step", "ring", "1"] == 6
    assert found["paceline_loss", "ring", "0"] == 0.25
    assert found["paceline_network_sent_bytes_total", "ring", "1"] == 10**12
    assert found["paceline_cpu_percent", "ring", "1"] == 99.5
    assert found["paceline_running", "ring", ""] == 1
    # What nobody measured is not there at all.
    assert not {name for name, _, _ in found} & {"paceline_accuracy", "paceline_gpu_percent"}
    board.finish("ring")
    found = parsed(board.text())
    assert found["paceline_running", "ring", ""] == 0
    assert found["paceline_runs_finished_total", "ring", ""] == 1


def test_workers_without_samples_are_shown_without_resources() -> None:
    board = MetricsBoard()
    board.put("ring", event(0, resources=None))
    names = {name for name, _, _ in parsed(board.text())}
    assert "paceline_step" in names
    assert "paceline_cpu_percent" not in names


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")])
def test_a_loss_that_is_no_number_is_said_as_the_format_says_it(value: float, text: str) -> None:
    board = MetricsBoard()
    board.put("ring", event(0, loss=value))
    assert f'paceline_loss{{strategy="ring",rank="0"}} {text}\n' in board.text()
    parsed(board.text())


def test_names_that_users_give_are_escaped() -> None:
    assert escape('a"b\\c\nd') == r"a\"b\\c\nd"
    board = MetricsBoard()
    board.put('ring"} 1\nevil{x="\\', event(0))
    found = parsed(board.text())
    assert {strategy for _, strategy, _ in found} == {r"ring\"} 1\nevil{x=\"\\"}
    assert "\nevil" not in board.text()


def test_names_follow_the_customs() -> None:
    for metric in METRICS:
        assert metric.name.startswith("paceline_")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert "\n" not in metric.help


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    board = MetricsBoard()
    board.put("ring", event(0))
    served = MetricsServer(board.text, host="127.0.0.1", port=0)
    yield served
    served.close()


def test_the_text_is_served_on_loopback(server: MetricsServer) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", server.address)
    with urllib.request.urlopen(server.address, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        found = parsed(answer.read().decode())
    assert found["paceline_step", "ring", "0"] == 7


def test_nothing_else_is_served(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(server.address + "/../../etc/passwd", timeout=10)
    assert caught.value.code == 404
    caught.value.close()


def test_a_reader_that_leaves_does_no_harm(server: MetricsServer, capsys: pytest.CaptureFixture[str]) -> None:
    port = int(server.address.rpartition(":")[2].partition("/")[0])
    for words in (b"GET /metrics HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", port)) as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # leaves with a reset
            reader.sendall(words)
    with urllib.request.urlopen(server.address, timeout=10) as answer:
        assert answer.status == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_taken_port_is_the_users_mistake(server: MetricsServer) -> None:
    port = int(server.address.rpartition(":")[2].partition("/")[0])
    with pytest.raises(UsageError, match=rf"^metrics cannot be served on 127.0.0.1, port {port}: "):
        MetricsServer(lambda: "", host="127.0.0.1", port=port)


def test_an_address_that_is_not_ours_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"^metrics cannot be served on 192\.0\.2\.1, port 0: "):
        MetricsServer(lambda: "", host="192.0.2.1", port=0)


def test_every_metric_is_described() -> None:
    page = (REPOSITORY / "docs" / "resources.md").read_text()
    for name in [*(metric.name for metric in METRICS), "paceline_running", "paceline_runs_finished_total"]:
        assert f"`{name}`" in page, name
