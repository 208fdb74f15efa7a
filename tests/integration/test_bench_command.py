"""`paceline bench` as a user types it: figures, files, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command import run_in
from helpers import TESTS
from paceline.study.bench_trials import OPS

TINY = ["--workers", "2", "--bytes", "4K,60K", "--warmup", "1", "--iterations", "3"]
LENDING, WRONG, ELSEWHERE = (f"{TESTS / 'bench_comms.py'}:{name}" for name in ("Lending", "WrongSums", "Elsewhere"))


def bench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, "bench", *arguments)


def key(row: dict[str, Any]) -> tuple[str, int, str, str]:
    return row["op"], row["bytes"], row["comm"], row["result"]


def test_every_operation_on_two_comms(tmp_path: Path) -> None:
    comms = ["torch", LENDING]
    done = bench(*TINY, "--op", "all", "--comm", ",".join(comms), "--json", "-", "--plot", "p.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    assert found["copy_limit_bytes_per_s"] > 0
    assert found["environment"]["torch"]
    expected = []
    for op in OPS:
        lent = ["shared", "private", "plain"] if op == "all_reduce" else ["private"]
        rows = [("torch", "private"), *((LENDING, result) for result in lent)]
        expected += [(op, size, *row) for size in (4096, 61440) for row in rows]
    assert list(map(key, found["results"])) == expected
    for row in found["results"]:
        assert (row["world_size"], row["dtype"], row["correct"]) == (2, "float32", True)
        assert 0 < row["time_s"]["p50"] <= row["time_s"]["p95"]
        assert row["algbw_bytes_per_s"] == pytest.approx(row["bytes"] / row["time_s"]["p50"])
        assert row["percent_of_copy_limit"] == pytest.approx(
            100 * row["busbw_bytes_per_s"] / row["copy_limit_bytes_per_s"]
        )
    assert max(map(len, done.stderr.splitlines())) <= 100
    assert done.stderr.count(" ok") == len(expected)
    assert "<html" in (tmp_path / "p.html").read_text()[:100]


@pytest.mark.slow
def test_parts_are_equal_and_the_size_says_so(tmp_path: Path) -> None:
    size = ["--workers", "3", "--bytes", "4096", "--warmup", "0", "--iterations", "1"]
    done = bench(*size, "--op", "all_gather,broadcast", "--comm", "torch", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [(row["op"], row["bytes"]) for row in rows] == [("all_gather", 4092), ("broadcast", 4096)]


@pytest.mark.slow
def test_a_wrong_sum_is_found_and_named(tmp_path: Path) -> None:
    request = [*TINY, "--comm", f"torch,{WRONG}", "--op", "all_reduce,broadcast", "--json", "-"]
    done = bench(*request, cwd=tmp_path)
    assert done.returncode == 1
    wrong = [row for row in json.loads(done.stdout)["results"] if not row["correct"]]
    assert list(map(key, wrong)) == [("all_reduce", size, WRONG, "private") for size in (4096, 61440)]
    assert all(row["wrong_workers"] == [1] for row in wrong)
    assert "2 of 8 results are wrong; first: all_reduce of 4096 bytes" in done.stderr
    assert "(private), on workers 1" in done.stderr
    assert "Traceback" not in done.stderr
    unchecked = bench(*request, "--no-check", cwd=tmp_path)
    assert unchecked.returncode == 0, unchecked.stderr
    assert {row["correct"] for row in json.loads(unchecked.stdout)["results"]} == {None}


def test_a_wrong_request_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    done = bench("--comm", f"torch,{ELSEWHERE}", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "cannot be used here: it needs a machine that is not here" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_is_a_sentence(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "paceline",
        "bench",
        "--workers",
        "2",
        "--comm",
        "torch",
        "--iterations",
        "1000000",
    ]
    command += ["--iterations", "1000000"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "2 workers" in process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "interrupted: all workers are stopped" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_under_torchrun_the_command_is_the_same(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [*launcher, "-m", "paceline", "bench", "--comm", f"torch,{LENDING}", "--bytes", "4K", "--json", "r.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [(row["comm"], row["result"]) for row in rows][:2] == [("torch", "private"), (LENDING, "shared")]
    assert {row["world_size"] for row in rows} == {2}
    assert done.stdout.count("all_reduce") == len(rows)  # one process reports
