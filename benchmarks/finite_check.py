"""Cost of checking in every step that the loss and the gradients are finite, relative to a step without the check.

    python benchmarks/finite_check.py [--cases lenet5:50,vgg11:50,resnet18:50] [--blocks 15]

A case is a model and a batch. One process trains with one thread. Steps with and without the check alternate in random
order, so that slow periods of the machine affect both kinds, and are added up in blocks. Times are processor times.
Prints the medians over blocks and the ratio with a 95 % interval.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch

from paceline.comm.threads import ThreadsComm
from paceline.measure.stats import paired_ratio
from paceline.recipe import Recipe
from paceline.train.context import Context
from paceline.train.finite import CONTINUE, STOP, all_finite
from paceline.train.job import make_trainer
from paceline.train.trainer import Trainer

INPUT = {"lenet5": "synthetic:1x28x28x10"}
STEPS_PER_BLOCK = {"lenet5": 40}
MODES = (STOP, CONTINUE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="lenet5:50,vgg11:50,resnet18:50")
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'case':14} {'step, ms':>10} {'check, ms':>10}  ratio of steps with and without the check")
    for case in arguments.cases.split(","):
        model, _, batch = case.partition(":")
        _measure(model, int(batch), arguments.blocks)


def _measure(model: str, batch: int, num_blocks: int) -> None:
    trainer = make_trainer(Context(ThreadsComm.world(1)[0]), _recipe(model, batch), "all-reduce")
    num_steps = STEPS_PER_BLOCK.get(model, 1)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    _block(trainer, num_steps)  # warm-up
    for _ in range(num_blocks):
        for mode, mean_s in _block(trainer, num_steps).items():
            times[mode].append(mean_s)
    ratio = paired_ratio(times[STOP], times[CONTINUE])
    interval = f" ({ratio.low:.4f} to {ratio.high:.4f})" if ratio.low and ratio.high else ""
    step_ms = 1000 * statistics.median(times[CONTINUE])
    print(f"{model}:{batch:<7} {step_ms:10.2f} {_check_ms(trainer):10.3f}  {ratio.value:.4f}{interval}")


def _recipe(model: str, batch: int) -> Recipe:
    data = {"data.name": INPUT.get(model, "synthetic:3x32x32x10"), "data.train_samples": batch, "data.test_samples": 4}
    return Recipe().replace({"model.name": model, **data, "train.batch_size": batch, "train.epochs": 1})


def _block(trainer: Trainer, num_steps: int) -> dict[str, float]:
    """Return the mean processor time of a step of either kind, in seconds."""
    sums = dict.fromkeys(MODES, 0.0)
    for _ in range(num_steps):
        for mode in random.sample(MODES, len(MODES)):
            trainer.finite.mode = mode
            started = time.process_time()
            trainer._step(0, 0, 0)
            sums[mode] += time.process_time() - started
    return {mode: total / num_steps for mode, total in sums.items()}


def _check_ms(trainer: Trainer) -> float:
    """Return the median processor time of one check of all gradients, in milliseconds."""
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    times = []
    for _ in range(50):
        started = time.process_time()
        all_finite(gradients)
        times.append(time.process_time() - started)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    main()
