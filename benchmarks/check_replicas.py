"""Cost of --check-replicas: blocks of steps with and without the check, in turn, in one run.

`python benchmarks/check_replicas.py [--models lenet5,vgg11] [--every 1,10,100] [--workers 2] [--pairs 30]`

Prints the ratio of the times of neighbouring blocks, as a median with its 95 % confidence interval, and the time of
one hash alone. A block has M steps (at least 5), so a block with the check has one comparison for M = 10 and 100.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from pathlib import Path
from typing import Any

from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.stats import interval95_of_median
from paceline.recipe import Recipe
from paceline.train.context import Context, ignore_event
from paceline.train.job import make_trainer
from paceline.train.replica_check import BitHash, ReplicaCheck

DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
LEAST_BLOCK = 5


def checked_job(context: Context, recipe: Recipe, every: int, block: int) -> dict[str, Any]:
    """Train in blocks, the first and the last of every four with the check. Return the time of every block."""
    trainer = make_trainer(context, recipe, recipe.strategy)
    begin, times = time.perf_counter(), []

    def on_step(step: int) -> None:
        nonlocal begin
        if step % block == 0:
            now = time.perf_counter()
            times.append(now - begin)
            begin = now
            is_checked = step // block % 4 in (0, 3)
            trainer.replica_check = ReplicaCheck(every, trainer.strategy, context.comm) if is_checked else None

    trainer.run(on_step)
    bit_hash, hashes = BitHash(), []
    for _ in range(20):
        started = time.perf_counter()
        bit_hash(trainer.model.parameters())
        hashes.append(time.perf_counter() - started)
    return {"blocks": times[1:], "hash_s": statistics.median(hashes)}


def measure(pool: LocalPool, model: str, every: int, *, workers: int, batch: int, pairs: int) -> str:
    block = max(every, LEAST_BLOCK)
    recipe = Recipe().replace(
        {
            "model.name": model,
            "data.name": DATA[model],
            "data.train_samples": batch * workers * 10,
            "data.test_samples": 8,
            "train.worker_batch_size": batch,
            "train.iterations": (2 * pairs + 4) * block + 1,
            "workers": workers,
            "strategy": "all-reduce",
        }
    )
    job = importlib.import_module(Path(__file__).stem).checked_job  # workers import it by this name
    task = Task(job, {"recipe": recipe, "every": every, "block": block}, num_workers=workers)
    found = pool.run(task, ignore_event)[0]
    blocks = [(index % 4 in (0, 3), seconds) for index, seconds in enumerate(found["blocks"])][4:]
    couples = [sorted(blocks[index : index + 2], reverse=True) for index in range(0, len(blocks) - 1, 2)]
    ratios = [checked[1] / other[1] for checked, other in couples]
    low, high = interval95_of_median(ratios)
    step_ms = 1000 * statistics.median(other[1] for _, other in couples) / block
    return (
        f"{model:8} M={every:<4} {step_ms:8.2f} ms/step, hash {1000 * found['hash_s']:6.3f} ms, "
        f"ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}], {len(ratios)} pairs of blocks of {block} steps"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="lenet5,vgg11")
    parser.add_argument("--every", default="1,10,100")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8, help="samples per worker and step")
    parser.add_argument("--pairs", type=int, default=30)
    asked = parser.parse_args()
    with LocalPool(asked.workers) as pool:
        for model in asked.models.split(","):
            for every in map(int, asked.every.split(",")):
                sizes = {"workers": asked.workers, "batch": asked.batch, "pairs": asked.pairs}
                print(measure(pool, model, every, **sizes), flush=True)


if __name__ == "__main__":
    main()
