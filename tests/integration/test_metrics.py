"""Resources and live figures of whole runs, as commands give them."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from command import run_command
from helpers import ignore_event, python_processes
from paceline.comm.shm import ShmComm
from paceline.launch.local import LocalPool
from paceline.measure.network_counters import Connections
from paceline.recipe import load_recipe
from paceline.runs import Folder
from paceline.study.entries import make_entry
from paceline.study.run import execute

RUN = ["-m", "paceline", "run", "--workers", "2", "--strategy", "ring", "--comm", "torch"]


def read_metrics(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def test_figures_of_every_worker_are_served_while_a_run_lasts(tmp_path: Path) -> None:
    command = [*RUN, "--epochs", "100000", "--metrics-port", "0", "--out", str(tmp_path)]
    with python_processes(command) as [process]:
        said = ""
        for line in process.stdout:
            said += line
            if "metrics on" in line:
                break
        found = re.search(r"http://127\.0\.0\.1:\d+/metrics", said)
        assert found, said
        wanted = [rf'^paceline_{name}{{rank="{rank}",strategy="ring"}} \S+$'
                  for name in ("step", "loss", "samples_per_second", "in_comm_percent", "cpu_percent", "memory_bytes")
                  for rank in (0, 1)]  # fmt: skip
        deadline = time.monotonic() + 90
        while not all(re.search(pattern, text := read_metrics(found[0]), re.MULTILINE) for pattern in wanted):
            assert time.monotonic() < deadline, text
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run_command(name, "--metrics-port", str(port), "--out", str(tmp_path))
    assert said.code == 2
    assert f"metrics cannot be served on 127.0.0.1, port {port}" in said.err
    assert list(tmp_path.iterdir()) == []


def finished(pool: LocalPool, out: Path, **changes: Any) -> tuple[dict[str, Any], Path]:
    """The result of a short run with two workers, and its folder."""
    given = {"comm": "torch", "workers": 2, **{key.replace("__", "."): value for key, value in changes.items()}}
    recipe = load_recipe("lenet5-mnist").replace(given)
    folder = Folder(out, "run")
    result = execute(pool, recipe, make_entry("ring", recipe), folder=folder, on_event=ignore_event)
    assert result is not None
    return result, folder.path


def test_a_run_has_resources_and_network(pool: LocalPool, tmp_path: Path) -> None:
    result, folder = finished(pool, tmp_path, train__epochs=30, measure__sample_hz=50.0)
    for rank, worker in enumerate(result["resources"]["per_worker"]):
        assert worker["rank"] == rank
        assert len(worker["time_s"]) == len(worker["rss_bytes"]) >= 3
        assert worker["gpu_percent"] is None
        lines = (folder / "workers" / f"{rank}.jsonl").read_text().splitlines()
        samples = [row for row in map(json.loads, lines) if row["kind"] == "sample"]
        assert len(samples) >= 3
        assert samples[-1]["time_s"] == pytest.approx(worker["time_s"][-1])
    if Connections.open() is None:
        assert result["network"] is None
        return
    for row, worker in zip(result["network"]["per_worker"], result["per_worker"], strict=True):
        assert row["comm_sent_bytes"] == row["predicted_sent_bytes"] == worker["sent_bytes"]
        assert row["kernel_sent_bytes"] == pytest.approx(row["predicted_sent_bytes"], rel=0.05)
        assert row["kernel_received_bytes"] == pytest.approx(row["comm_received_bytes"], rel=0.05)
        assert row["memory_bytes"] == 0


def test_shared_memory_is_counted_apart(pool: LocalPool, tmp_path: Path) -> None:
    if ShmComm.unavailable():
        pytest.skip(ShmComm.unavailable())
    result, _ = finished(pool, tmp_path, train__epochs=5, comm="shm")
    for row, worker in zip(result["network"]["per_worker"], result["per_worker"], strict=True):
        assert row["memory_bytes"] == worker["sent_bytes"] > 0
        assert row["comm_sent_bytes"] == row["predicted_sent_bytes"] == 0
        assert row["kernel_sent_bytes"] < 10_000


def test_without_sampling_there_are_no_resources(pool: LocalPool, tmp_path: Path) -> None:
    result, _ = finished(pool, tmp_path, train__epochs=2, measure__sample_hz=0.0)
    assert result["resources"] is None
    assert result["network"] is None
