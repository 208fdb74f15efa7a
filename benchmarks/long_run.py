"""Memory of a worker over a long run: 100,000 steps against 1,000, with measuring on.

`python benchmarks/long_run.py [--steps 1000,100000] [--workers 2] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.train.job import train_job

WARM_STEPS = 500  # allocators have reached a steady state by then


def tiny() -> nn.Module:
    """A minimal model, so that the loop and its observers dominate."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


class Memory:
    """Resident memory of all workers, sampled at every progress event of rank 0."""

    def __init__(self, launcher: LocalPool) -> None:
        self._launcher = launcher
        self.samples: list[tuple[int, int]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] in ("progress", "log"):
            processes = [psutil.Process(process.popen.pid) for process in self._launcher._processes]
            self.samples.append((event["step"], max(process.memory_info().rss for process in processes)))


def measure(steps: int, workers: int) -> dict[str, Any]:
    recipe = Recipe().replace(
        {
            "model.name": f"{Path(__file__).resolve()}:tiny",
            "data.name": "synthetic:1x2x2x2",
            "data.train_samples": 200,
            "data.test_samples": 2,
            "train.worker_batch_size": 1,
            "train.iterations": steps,
            "workers": workers,
        }
    )
    with tempfile.TemporaryDirectory() as folder, LocalPool(workers) as launcher:
        memory = Memory(launcher)
        arguments = {"recipe": recipe, "strategy": "all-reduce", "checkpoint": "", "folder": folder}
        started = time.perf_counter()
        results = launcher.run(Task(train_job, arguments, num_workers=workers, comm="shm"), memory)
        total_s = time.perf_counter() - started
        file_bytes = (Path(folder) / "workers" / "0.jsonl").stat().st_size
    warm = min(rss for step, rss in memory.samples if step >= min(WARM_STEPS, steps // 2))
    return {
        "steps": steps,
        "step_s": results[0]["train_s"] / steps,
        "total_s": total_s,
        "rss_warm_bytes": warm,
        "rss_end_bytes": memory.samples[-1][1],
        "rss_most_bytes": max(rss for _, rss in memory.samples),
        "file_bytes": file_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", default="1000,100000")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for steps in asked.steps.split(","):
        row = measure(int(steps), asked.workers)
        rows.append(row)
        print(
            f"{row['steps']:>8,} steps of {1e6 * row['step_s']:.0f} us: RSS {row['rss_warm_bytes'] / 1e6:.1f} MB when "
            f"warm, {row['rss_end_bytes'] / 1e6:.1f} MB at the end; file {row['file_bytes'] / 1e6:.2f} MB",
            flush=True,
        )
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
