"""What agreeing adds to a step: strategies on shared memory against ddp on gloo, both over no synchronisation at all.

    python benchmarks/added.py [--workers 4] [--repeats 9] [--cases lenet5:8,vgg11:8,lenet5:64,vgg11:64]

A case is a model and a batch per worker. All ways run in turn on the same processes, so that what slows the machine
for a while slows all of them. Prints medians over repeats of a step's mean time, what each way adds to `none`, and that
as a share of what ddp on gloo adds, with a 95 % interval from resampled repeats. The bar is 0.25 at 8 per worker.
`none:meet=true` sends nothing, but its workers wait for each other in every step: what no agreement can go below.
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

WAYS = "none@torch,ddp@torch,none:meet=true@shm,overlap@torch,overlap@shm,sharded@shm"  # strategy@comm, both ends first
INPUT = {"lenet5": "synthetic:1x28x28x10"}
STEPS = {("lenet5", 8): 300, ("lenet5", 64): 100, ("vgg11", 8): 24, ("vgg11", 64): 6}
WARMUP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cases", default="lenet5:8,vgg11:8,lenet5:64,vgg11:64")
    parser.add_argument("--ways", default=WAYS)
    parser.add_argument("--steps", type=int, default=0, help="steps of a run (0: as suits the case)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no repeat of a case starts later than this")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    with LocalPool(arguments.workers) as launcher:
        for case in arguments.cases.split(","):
            model, batch = case.split(":")
            steps = arguments.steps or STEPS.get((model, int(batch)), 20)
            times: dict[str, list[float]] = {way: [] for way in ways}
            started = time.perf_counter()
            for repeat in range(arguments.repeats):
                if repeat > 1 and time.perf_counter() - started > arguments.seconds:
                    break
                for way in ways if repeat % 2 else reversed(ways):
                    times[way].append(_run(launcher, way, model, int(batch), arguments.workers, steps))
            _show(case, arguments.workers, ways, times)


def _run(launcher: LocalPool, way: str, model: str, batch: int, workers: int, steps: int) -> float:
    """Mean seconds of a step, over workers, in one run."""
    strategy, _, comm = way.partition("@")
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


def _show(case: str, workers: int, ways: list[str], times: dict[str, list[float]]) -> None:
    none, ddp = ways[:2]
    print(f"\n{case} per worker, {workers} workers, {len(times[none])} repeats")
    print(f"{'way':<20} {'ms/step':>9} {'added ms':>9} {'of ' + ddp:>12}  95 % interval")
    for way in ways:
        line = f"{way:<20} {1000 * statistics.median(times[way]):9.3f}"
        if way != none:
            added = 1000 * statistics.median(_added(times, way, none))
            share, low, high = _share(_added(times, way, none), _added(times, ddp, none))
            line += f" {added:9.3f}" + ("" if way == ddp else f" {share:12.2f}  {low:.2f} to {high:.2f}")
        print(line, flush=True)


def _added(times: dict[str, list[float]], way: str, none: str) -> list[float]:
    return [ours - base for ours, base in zip(times[way], times[none], strict=True)]


def _share(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median over median, and the middle 95 % of the same over resampled repeats."""
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
