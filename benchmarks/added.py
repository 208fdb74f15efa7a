"""Time that synchronisation adds to a step: strategies on shared memory against ddp on gloo, relative to `none`.

    python benchmarks/added.py [--workers 4] [--repeats 9] [--cases lenet5:8,vgg11:8,lenet5:64,vgg11:64]

A case is a model and a batch per worker. All strategies run in turn on the same processes, so that disturbances of
the machine affect all of them. Prints medians over repeats of a step's mean time, the time added to `none`, and its
share of what ddp on gloo adds, with a 95 % interval from resampled repeats. The bar is 0.25 at 8 per worker.
`none:meet=true` sends nothing, but has a barrier in every step: the lower bound for any synchronisation.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from typing import Any

from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.train.job import train_job

SETUPS = (
    "none@torch,ddp@torch,none:meet=true@shm,overlap@torch,overlap@shm,sharded@shm"  # strategy@comm, both ends first
)
INPUT = {"lenet5": "synthetic:1x28x28x10"}
STEPS = {("lenet5", 8): 300, ("lenet5", 64): 100, ("vgg11", 8): 24, ("vgg11", 64): 6}
WARMUP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cases", default="lenet5:8,vgg11:8,lenet5:64,vgg11:64")
    parser.add_argument("--ways", dest="setups", metavar="SETUPS", default=SETUPS)
    parser.add_argument("--steps", type=int, default=0, help="steps of a run (0: as suits the case)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no repeat of a case starts later than this")
    arguments = parser.parse_args()
    setups = arguments.setups.split(",")
    with LocalPool(arguments.workers) as launcher:
        for case in arguments.cases.split(","):
            model, batch = case.split(":")
            steps = arguments.steps or STEPS.get((model, int(batch)), 20)
            times: dict[str, list[float]] = {setup: [] for setup in setups}
            started = time.perf_counter()
            for repeat in range(arguments.repeats):
                if repeat > 1 and time.perf_counter() - started > arguments.seconds:
                    break
                for setup in setups if repeat % 2 else reversed(setups):
                    times[setup].append(_run(launcher, setup, model, int(batch), arguments.workers, steps))
            _show(case, arguments.workers, setups, times)


def _run(launcher: LocalPool, setup: str, model: str, batch: int, workers: int, steps: int) -> float:
    """Return the mean seconds of a step, over workers, in one run."""
    strategy, _, comm = setup.partition("@")
    recipe = Recipe().replace(
        {
            "model.name": model,
            "data.name": INPUT.get(model, "synthetic:3x32x32x10"),
            "data.train_samples": batch * workers * 4,
            "data.test_samples": 4,
            "train.worker_batch_size": batch,
            "train.iterations": steps + WARMUP,
            "optimizer.lr": 0.01,
            "optimizer.momentum": 0.9,
            "workers": workers,
            "comm": comm,
        }
    )
    arguments: dict[str, Any] = {"recipe": recipe, "strategy": strategy, "checkpoint": ""}
    results = launcher.run(Task(train_job, arguments, num_workers=workers, comm=comm), lambda event: None)  # noqa: ARG005
    return statistics.fmean(statistics.fmean(worker["iteration_s"][WARMUP:]) for worker in results)


def _show(case: str, workers: int, setups: list[str], times: dict[str, list[float]]) -> None:
    none, ddp = setups[:2]
    print(f"\n{case} per worker, {workers} workers, {len(times[none])} repeats")
    print(f"{'strategy@comm':<20} {'ms/step':>9} {'added ms':>9} {'of ' + ddp:>12}  95 % interval")
    for setup in setups:
        line = f"{setup:<20} {1000 * statistics.median(times[setup]):9.3f}"
        if setup != none:
            added = 1000 * statistics.median(_added(times, setup, none))
            share, low, high = _share(_added(times, setup, none), _added(times, ddp, none))
            line += f" {added:9.3f}" + ("" if setup == ddp else f" {share:12.2f}  {low:.2f} to {high:.2f}")
        print(line, flush=True)


def _added(times: dict[str, list[float]], setup: str, none: str) -> list[float]:
    return [ours - base for ours, base in zip(times[setup], times[none], strict=True)]


def _share(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return the ratio of medians, and the middle 95 % of this ratio over resampled repeats."""
    value = statistics.median(ours) / statistics.median(theirs)
    chance = random.Random(0)
    values = []
    for _ in range(2000):
        picks = chance.choices(range(len(ours)), k=len(ours))
        below = statistics.median(theirs[pick] for pick in picks)
        values.append(statistics.median(ours[pick] for pick in picks) / below)
    values.sort()
    return value, values[49], values[1949]


if __name__ == "__main__":
    main()
