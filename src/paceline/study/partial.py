"""Judging strategies that let replicas differ on the way: no further than stated, and the same bits when they meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.launch.base import Launcher, Task
from paceline.recipe import Recipe
from paceline.results.value import Json
from paceline.results.verify import Divergence
from paceline.strategies import Guarantee, Strategy, StrategySpec
from paceline.study.replica_job import replica_job

# Added to a bound that may be zero, in lengths of a step: float64 rounds at 1e-16 of a replica, and a step is not a
# million times shorter than one.
ROUNDING = 1e-9

Seen = dict[str, list[Json]]  # by optimiser: what each worker saw


@dataclass(frozen=True, kw_only=True)
class Apart:
    """How far replicas were from each other, and whether that is within the promise."""

    max_relative_error: float
    tolerance: float
    is_kept: bool
    bytes_as_predicted: bool
    first_divergence: Divergence | None
    optimizers: list[str]
    steps: int


def judge_apart(text: str, recipes: dict[str, Recipe], launcher: Launcher, comm: str) -> Apart:
    """Whether a PARTIAL or PERIODIC strategy keeps its promise: figures for a row of the certificate."""
    strategy = StrategySpec.parse(text).build()
    seen: Seen = {}
    for optimizer, recipe in recipes.items():
        num_steps = max(recipe.train.iterations or 1, _steps_to_see(strategy, recipe.workers))
        recipe = recipe.replace({"train.iterations": num_steps})
        arguments = {"recipe": recipe, "strategy": text, "has_distances": True}
        task = Task(replica_job, arguments, num_workers=recipe.workers, comm=comm)
        seen[optimizer] = launcher.run(task, lambda event: None)  # noqa: ARG005
    if strategy.guarantee is Guarantee.PARTIAL:
        tolerance = strategy.drift_bound(num_workers_of(seen)) + ROUNDING
        found = [*_drifts(seen), *_unequal(seen)]
    else:
        tolerance = 0.0
        found = [*_unequal(seen, strategy)]
    worst = max(difference.error for difference in found)
    first = next((d for d in sorted(found, key=lambda d: (d.step, d.rank)) if d.error > tolerance), None)
    bytes_equal = all(worker["counted"] == worker["predicted"] for workers in seen.values() for worker in workers)
    moved = all(row["longest_update"] > 0 for workers in seen.values() for worker in workers for row in worker["steps"])
    return Apart(
        max_relative_error=worst,
        tolerance=tolerance,
        is_kept=worst <= tolerance and bytes_equal and moved,
        bytes_as_predicted=bytes_equal,
        first_divergence=first,
        optimizers=list(seen),
        steps=len(seen[next(iter(seen))][0]["steps"]),
    )


def num_workers_of(seen: Seen) -> int:
    return len(next(iter(seen.values())))


def _steps_to_see(strategy: Strategy, num_workers: int) -> int:
    """Enough for every start of a rotation and one more; or for a synchronisation and a step on the way to the next."""
    if strategy.guarantee is Guarantee.PARTIAL:
        return num_workers + 1
    return next(step for step in range(1 << 20) if strategy.is_synchronised(step)) + 2


def _drifts(seen: Seen) -> Iterator[Divergence]:
    """Distances from the mean replica after every step, in lengths of the longest update so far of any worker."""
    for optimizer, workers in seen.items():
        longest = 0.0
        for step in range(len(workers[0]["steps"])):
            longest = max([longest, *(worker["steps"][step]["longest_update"] for worker in workers)])
            for worker in workers:
                drift = worker["steps"][step]["distance"] / longest if longest else math.inf
                yield _difference(optimizer, worker["rank"], step, math.inf if math.isnan(drift) else drift)


def _unequal(seen: Seen, strategy: Strategy | None = None) -> Iterator[Divergence]:
    """Replicas that are not rank 0's bits: at the end, and where a strategy says that they are synchronised."""
    for optimizer, workers in seen.items():
        for worker in workers:
            last = len(worker["steps"]) - 1
            pairs = [(last, worker["final_digest"], workers[0]["final_digest"])]
            for step, (row, first) in enumerate(zip(worker["steps"], workers[0]["steps"], strict=True)):
                if strategy is not None and strategy.is_synchronised(step):
                    pairs.append((step, row["digest"], first["digest"]))
            for step, own, other in pairs:
                yield _difference(optimizer, worker["rank"], step, 0.0 if own == other else math.inf)


def _difference(optimizer: str, rank: int, step: int, error: float) -> Divergence:
    return Divergence(optimizer=optimizer, rank=rank, step=step, tensor="all together", error=error)
