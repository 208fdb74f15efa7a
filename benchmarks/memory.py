"""How well memory is predicted: a worker's peak RSS as measured against what was said before it started.

    python benchmarks/memory.py [--models lenet5,vgg11,resnet18] [--batches 16,64,256,1024] [--workers 2]
                                [--strategies overlap] [--optimizer sgd] [--json FILE]

Every line is a run of a few steps in processes of their own. Batches are global. The error is the prediction over the
measured peak, less one: above zero too much was predicted, and somebody may be refused who would have fitted; below
zero too little, and somebody may be started who does not fit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from paceline.cli.parts.sweeping import launch
from paceline.recipe import Recipe
from paceline.study.sweep import Request, open_sweep, run_sweep
from paceline.study.vary import Axis

DATA = {"lenet5": "synthetic:1x28x28x10"}
MOMENTUM = {"sgd": 0.9, "lars": 0.9}


class Quiet:
    """Follows a sweep without a word."""

    def started(self, entry: Any, repeat: int) -> None: ...

    def event(self, entry: Any, event: Any) -> None: ...

    def done(self, entry: Any, repeat: int, result: Any) -> None: ...


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
        axes = [Axis("strategy", tuple(arguments.strategies.split(","))), Axis("train.batch_size", tuple(batches))]
        rows += measure(Request(Recipe(name=model).replace(changes), axes), model)
    worst = max(rows, key=lambda row: abs(row["error_percent"]))
    print(f"worst error {worst['error_percent']:+.0f} %: {worst['model']}, {worst['point']}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")


def measure(request: Request, model: str) -> list[dict[str, Any]]:
    """Run every point and print a line for each."""
    with tempfile.TemporaryDirectory() as folder:
        sweep = open_sweep(request, out=Path(folder))
        study = run_sweep(sweep, launch, Quiet())
    rows = []
    for failure in study["failures"]:
        print(f"{model:10} {failure['label']:40} {failure['status']}: {failure['reason']}")
    for result in study["results"]:
        predicted, peak = result["memory"]["predicted"], result["memory"]["peak_rss_bytes"]
        error = 100 * (predicted["worker_bytes"] / peak - 1)
        print(
            f"{model:10} {result['label']:40} predicted {predicted['worker_bytes'] / 1e6:7,.0f} MB, "
            f"measured {peak / 1e6:7,.0f} MB, error {error:+5.1f} %",
            flush=True,
        )
        rows.append({"model": model, "point": result["label"], "predicted": predicted, "peak_rss_bytes": peak})
        rows[-1]["error_percent"] = error
    return rows


if __name__ == "__main__":
    main()
