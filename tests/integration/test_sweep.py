"""Sweeps as a user types them: real workers, real memory, interruptions."""

from __future__ import annotations

import glob
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command import run_in
from helpers import wait_until_gone

TINY = ["--workers", "2", "--train-samples", "128", "--test-samples", "64", "--epochs", "2", "--no-report"]


def paceline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_in(cwd, *arguments)


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_batch_sweep_with_remedies(tmp_path: Path) -> None:
    arguments = ["--vary", "batch-size=16,64", "--remedy", "lars:lr=5", "--json", "s.json"]
    done = paceline("sweep", *TINY[:-1], *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines() if "runs/" not in line) <= 100
    assert "From batch 16 to 64:" in done.stdout
    study = load(tmp_path / "s.json")
    assert [(row["batch_size"], row["remedy"]) for row in study["results"]] == [
        (size, remedy) for size in (16, 64) for remedy in ("", "lars:lr=5")
    ]
    assert all(row["final"]["test_accuracy"] is not None for row in study["results"])
    for row in study["results"]:
        predicted, peak = row["memory"]["predicted"]["worker_bytes"], row["memory"]["peak_rss_bytes"]
        assert 0.5 < predicted / peak < 2  # roughly; benchmarks/memory.py says how well
    [folder] = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text()
    assert "What was varied" in page
    shown = paceline("runs", "show", "last", cwd=tmp_path)
    assert "lars:lr=5" in shown.stdout


@pytest.mark.slow
def test_one_point_dies_and_the_same_command_again_tries_it_alone(tmp_path: Path) -> None:
    vary = ["--vary", "measure.inject=kill:rank=1,step=2;none"]
    done = paceline("sweep", *TINY, *vary, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("failed: worker 1 died") == 2, done.stdout  # when it fails, and below the table
    [folder] = (tmp_path / "runs").iterdir()
    study = load(folder / "study.json")
    assert (study["status"], len(study["results"]), len(study["failures"])) == ("failed", 1, 1)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}
    again = paceline("sweep", *TINY, *vary, cwd=tmp_path)
    assert again.returncode == 1
    assert "Resuming it" in again.stdout
    assert "1 of 2 points measured" in " ".join(again.stdout.split())
    assert [path for path, when in before.items() if path.stat().st_mtime_ns != when] == []
    assert len(list(folder.glob("runs/*/summary.json"))) == len(before) + 1
    assert [item.name for item in (tmp_path / "runs").iterdir()] == [folder.name]


POINTS = "runs/*/runs/*/summary.json"


@pytest.mark.slow
def test_ctrl_c_and_resume(tmp_path: Path) -> None:
    slow = ["--vary", "measure.inject=none;slow:rank=0,ms=400", "--iterations", "60", "--workers", "1"]
    command = [sys.executable, "-m", "paceline", "sweep", *slow, "--train-samples", "128", "--no-report"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not any(load(Path(file))["status"] == "done" for file in glob.glob(str(tmp_path / POINTS))):
            assert running.poll() is None, running.stderr
            assert time.monotonic() < deadline
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=150)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 1
    assert "interrupted: all workers are stopped" in errors
    assert "--resume" in errors
    [folder] = (tmp_path / "runs").iterdir()
    assert load(folder / "study.json")["status"] == "interrupted"
    assert wait_until_gone([running.pid]) == []


@pytest.mark.slow
def test_what_cannot_fit_is_refused_with_a_micro_batch_that_does(tmp_path: Path) -> None:
    # A wide layer on many samples: terabytes of activations, and none of it is ever allocated.
    (tmp_path / "wide.py").write_text(
        "import torch\n"
        "class Wide(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.scale = torch.nn.Parameter(torch.ones(1000000, 1))\n"
        "        self.last = torch.nn.Linear(1000, 10)\n"
        "    def forward(self, x):\n"
        "        wide = torch.tanh(x.flatten(1).mean(1) * self.scale).T\n"
        "        return self.last(wide.reshape(len(x), 1000, 1000).mean(1))\n"
        "def model():\n"
        "    return Wide()\n"
        "def data(seed):\n"
        "    inputs, targets = torch.zeros(200000, 4), torch.zeros(200000, dtype=torch.int64)\n"
        "    return (inputs, targets), (inputs[:8], targets[:8])\n"
    )
    arguments = ["--model", "wide.py:model", "--data", "wide.py:data", "--workers", "1", "--iterations", "2"]
    arguments += ["--vary", "batch-size=4,200000", "--no-report", "--strategy", "none"]
    done = paceline("sweep", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "batch_size 200000 was refused: needs" in said
    assert "are available; --micro-batch-size" in said
