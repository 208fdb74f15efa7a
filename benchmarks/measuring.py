"""What measuring costs: blocks of steps with and without it, in turns, for a small and for a large model.

`python benchmarks/measuring.py [--models lenet5,vgg11] [--strategies ring,ddp] [--workers 4] [--json FILE]`
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from paceline.launch.base import Task
from paceline.launch.local import LocalLauncher
from paceline.recipe import Recipe
from paceline.study.measuring import compare_blocks
from paceline.train.job import train_job

DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
BATCH = 8  # of each worker: small steps, so that what is added to them shows


def measure(launcher: LocalLauncher, model: str, strategy: str, workers: int, steps: int, block: int) -> dict[str, Any]:
    recipe = Recipe().replace(
        {
            "model.name": model,
            "data.name": DATA[model],
            "data.train_samples": BATCH * workers * 10,
            "data.test_samples": 8,
            "train.worker_batch_size": BATCH,
            "train.iterations": steps,
            "workers": workers,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"recipe": recipe, "strategy": strategy, "checkpoint": "", "folder": folder}
        arguments |= {"steps_per_block": block}
        results = launcher.run(Task(train_job, arguments, num_workers=workers), lambda event: None)  # noqa: ARG005
        lines = sum(1 for _ in (Path(folder) / "workers" / "0.jsonl").open())
    times = [result["iteration_s"] for result in results]
    cost = compare_blocks(times, block) or {}
    median_s = sorted(times[0])[len(times[0]) // 2]
    return {"model": model, "strategy": strategy, "step_s": median_s, "lines_per_step": 2 * lines / steps, **cost}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="lenet5,vgg11")
    parser.add_argument("--strategies", default="all-reduce,ring,overlap,ddp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=0, help="0: 960 for lenet5, 240 for vgg11")
    parser.add_argument("--json", default="")
    asked = parser.parse_args()
    rows = []
    with LocalLauncher(asked.workers) as launcher:
        for model in asked.models.split(","):
            steps = asked.steps or {"lenet5": 960, "vgg11": 240}[model]
            for strategy in asked.strategies.split(","):
                row = measure(launcher, model, strategy, asked.workers, steps, block=5 if model == "lenet5" else 2)
                rows.append(row)
                low, high = row["interval95_percent"]
                print(
                    f"{model:8} {strategy:12} {1000 * row['step_s']:8.2f} ms/step, {row['lines_per_step']:5.1f} lines "
                    f"per measured step: {row['cost_percent']:+.2f} % [{low:+.2f}, {high:+.2f}]",
                    flush=True,
                )
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
