"""Accuracy of the memory prediction: predicted against measured peak RSS of a worker.

    python benchmarks/memory.py [--models lenet5,vgg11,resnet18] [--batches 16,64,256,1024] [--workers 2]
                                [--strategies overlap] [--optimizer sgd] [--json FILE]

Every line is a run of a few steps in processes of their own. Batches are global. The error is the prediction over the
measured peak, minus one: above zero a point that fits may be refused, below zero one that does not fit may be started.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from paceline.launch.base import LaunchRequest, WorkerPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import ClusterConfig, Recipe
from paceline.study.base import StudyListener
from paceline.study.engine import run_study
from paceline.study.sweep import Sweep
from paceline.study.sweep_axes import SweepAxis

DATA = {"lenet5": "synthetic:1x28x28x10"}
MOMENTUM = {"sgd": 0.9, "lars": 0.9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet5,vgg11,resnet18")
    parser.add_argument("--batches", default="16,64,256,1024")
    parser.add_argument("--strategies", default="overlap")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    batches = [int(text) for text in arguments.batches.split(",")]
    rows: list[dict[str, Any]] = []
    for model in arguments.models.split(","):
        changes = {
            "model.name": model,
            "data.name": DATA.get(model, "synthetic:3x32x32x10"),
            "data.train_samples": max(batches),
            "data.test_samples": 250,
            "workers": arguments.workers,
            "optimizer.name": arguments.optimizer,
            "optimizer.momentum": MOMENTUM.get(arguments.optimizer, 0.0),
            "optimizer.lr": 0.01,
            "train.iterations": arguments.steps,
            "timeout_s": 600.0,
        }
        axes = [
            SweepAxis("strategy", tuple(arguments.strategies.split(","))),
            SweepAxis("train.batch_size", tuple(batches)),
        ]
        rows += measure(Sweep.prepare(Recipe(name=model).replace(changes), axes), model)
    worst = max(rows, key=lambda row: abs(row["error_percent"]))
    print(f"worst error {worst['error_percent']:+.0f} %: {worst['model']}, {worst['point']}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


def launch(num_processes: int, cluster: ClusterConfig) -> WorkerPool:
    return choose_launcher(LaunchRequest(cluster=cluster)).open(num_processes)


def measure(sweep: Sweep, model: str) -> list[dict[str, Any]]:
    """Run every point and print a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_study(sweep, launch, StudyListener(), Path(folder))
    assert outcome is not None, "this process starts the workers, and reports"
    rows = []
    for failure in outcome.result["failures"]:
        print(f"{model:10} {failure.label:40} {failure.status}: {failure.reason}")
    for result in outcome.result.results:
        assert result.memory is not None, "rows of a sweep have their memory"
        predicted, peak = result.memory.predicted or {}, result.memory.peak_rss_bytes or 1
        error = 100 * (predicted["worker_bytes"] / peak - 1)
        print(
            f"{model:10} {result.label:40} predicted {predicted['worker_bytes'] / 1e6:7,.0f} MB, "
            f"measured {peak / 1e6:7,.0f} MB, error {error:+5.1f} %",
            flush=True,
        )
        rows.append({"model": model, "point": result.label, "predicted": predicted, "peak_rss_bytes": peak})
        rows[-1]["error_percent"] = error
    return rows


if __name__ == "__main__":
    main()
