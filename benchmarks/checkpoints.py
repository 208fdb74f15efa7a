"""Cost of checkpoints: blocks of steps with and without one, in turn, in the same training.

`python benchmarks/checkpoints.py [--models lenet5,vgg11] [--workers 2] [--blocks 40] [--steps 0]`

In every other block, all workers write a checkpoint after the first step. Prints the bytes and the pause of a
checkpoint, and the time of a block with a checkpoint over that of the neighbouring block without, with its 95 %
interval. The writing itself runs beside the training, so the blocks include it as far as it slows training down.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.checkpoint import step_folders
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.measure.stats import paired_ratio
from paceline.recipe import Recipe
from paceline.train.checkpointing import CheckpointPlace, Checkpoints
from paceline.train.context import Context
from paceline.train.job import make_trainer

DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
STEPS = {"lenet5": 100, "vgg11": 10}  # of a block
BATCH = 32  # of each worker


def train_blocks(context: Context, recipe: Recipe, strategy: str, folder: str, steps: int) -> dict[str, Any]:
    """Train, write a checkpoint in every other block of `steps` steps, and return the time of each block."""
    trainer = make_trainer(context, recipe, strategy)
    checkpoints = Checkpoints(trainer, CheckpointPlace(folder=folder), strategy)
    ends: list[float] = []
    pauses: list[float] = []

    def after_step(num_steps: int) -> None:
        block, index = divmod(num_steps - 1, steps)
        if index == steps - 1:
            checkpoints.writer.wait()  # what is written late counts for the block that began it
            ends.append(time.perf_counter())
        if index == 0 and block % 4 in (0, 3):  # in this order a steady drift of the machine's speed cancels
            begin = time.perf_counter()
            checkpoints.after_step(num_steps, 0.0)
            pauses.append(time.perf_counter() - begin)

    trainer.run(on_checkpoint=after_step)
    checkpoints.finish()
    newest = step_folders(Path(folder))[0]
    return {
        "block_s": [after - before for before, after in pairwise(ends)],
        "pause_s": pauses,
        "bytes": sum(file.stat().st_size for file in newest.glob(f"rank-{context.rank}.*")),
    }


def measure(pool: LocalPool, model: str, *, workers: int, blocks: int, steps: int, optimizer: str) -> None:
    recipe = Recipe().replace(
        {
            "model.name": model,
            "data.name": DATA[model],
            "data.train_samples": BATCH * workers * 10,
            "data.test_samples": 8,
            "train.worker_batch_size": BATCH,
            "train.iterations": steps * (blocks + 1),
            "train.checkpoint_every": "1step",
            "optimizer.name": optimizer,
            "optimizer.momentum": 0.9 if optimizer == "sgd" else 0.0,
            "optimizer.lr": 0.001,
            "workers": workers,
            "comm": "shm",
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"recipe": recipe, "strategy": "overlap", "folder": folder, "steps": steps}
        results = pool.run(Task(train_blocks, arguments, num_workers=workers, comm="shm"), lambda event: None)  # noqa: ARG005
    times = [max(worker["block_s"][index] for worker in results) for index in range(blocks)]
    # times[i] is block i + 1, because the first block warms up; blocks 3, 4, 7, 8, ... have a checkpoint
    with_it = [times[i] for i in range(blocks) if (i + 1) % 4 in (0, 3)]
    without = [times[i] for i in range(blocks) if (i + 1) % 4 in (1, 2)]
    pairs = min(len(with_it), len(without))
    ratio = paired_ratio(with_it[:pairs], without[:pairs])
    pauses = [1000 * pause for worker in results for pause in worker["pause_s"][1:]]
    size_mb = sum(worker["bytes"] for worker in results) / 1e6
    print(
        f"{model:7} {optimizer:5} {workers} workers, {size_mb:.1f} MB every {steps} steps "
        f"({statistics.median(without):.2f} s): pause median {statistics.median(pauses):.2f} ms, largest "
        f"{max(pauses):.1f} ms; with / without {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}], {pairs} pairs",
        flush=True,
    )


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--models", default="lenet5,vgg11")
    words.add_argument("--optimizers", default="sgd,adam")
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--blocks", type=int, default=40)
    words.add_argument("--steps", type=int, default=0, help="of a block; 0: 100 for lenet5, 10 for vgg11")
    asked = words.parse_args()
    with LocalPool(asked.workers) as pool:
        for model in filter(None, asked.models.split(",")):
            for optimizer in asked.optimizers.split(","):
                steps = asked.steps or STEPS[model]
                measure(pool, model, workers=asked.workers, blocks=asked.blocks, steps=steps, optimizer=optimizer)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))  # workers import `train_blocks` from here
    from checkpoints import main as imported_main

    imported_main()
