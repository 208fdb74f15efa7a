"""Judging strategies that let replicas differ on the way: no further than stated, and the same bits when they meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from paceline.comm import Counter
from paceline.launch.base import Task, WorkerPool
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, Strategy, StrategySpec
from paceline.strategies.weights import new_vector, pack
from paceline.train.context import Context
from paceline.train.job import make_trainer
from paceline.train.replicas import parameter_digest

# Added to a bound that may be zero, in lengths of a step: float64 rounds at 1e-16 of a replica, and a step is not a
# million times shorter than one.
ROUNDING = 1e-9

Seen = dict[str, list[dict[str, Any]]]  # by optimiser: what each worker saw


def judge_apart(text: str, recipes: dict[str, Recipe], launcher: WorkerPool, comm: str) -> dict[str, Any]:
    """Whether a PARTIAL or PERIODIC strategy keeps its promise: figures for a row of the certificate."""
    strategy = StrategySpec.parse(text).build()
    seen: Seen = {}
    for optimizer, recipe in recipes.items():
        num_steps = max(recipe.train.iterations or 1, _steps_to_see(strategy, recipe.workers))
        arguments = {"recipe": recipe.replace({"train.iterations": num_steps}), "strategy": text}
        task = Task(apart_job, arguments, num_workers=recipe.workers, comm=comm)
        seen[optimizer] = launcher.run(task, lambda event: None)  # noqa: ARG005
    if strategy.guarantee is Guarantee.PARTIAL:
        tolerance = strategy.drift_bound(num_workers_of(seen)) + ROUNDING
        found = [*_drifts(seen), *_unequal(seen)]
    else:
        tolerance = 0.0
        found = [*_unequal(seen, strategy)]
    worst = max(difference["error"] for difference in found)
    first = next((d for d in sorted(found, key=lambda d: (d["step"], d["rank"])) if d["error"] > tolerance), None)
    bytes_equal = all(worker["counted"] == worker["predicted"] for workers in seen.values() for worker in workers)
    moved = all(row["longest_update"] > 0 for workers in seen.values() for worker in workers for row in worker["steps"])
    return {
        "max_relative_error": worst,
        "tolerance": tolerance,
        "passed": worst <= tolerance and bytes_equal and moved,
        "meets_guarantee": worst <= tolerance and bytes_equal and moved,
        "bytes_as_predicted": bytes_equal,
        "first_divergence": first,
        "optimizers": list(seen),
        "steps": len(seen[next(iter(seen))][0]["steps"]),
    }


def num_workers_of(seen: Seen) -> int:
    return len(next(iter(seen.values())))


def _steps_to_see(strategy: Strategy, num_workers: int) -> int:
    """Enough for every start of a rotation and one more; or for a synchronisation and a step on the way to the next."""
    if strategy.guarantee is Guarantee.PARTIAL:
        return num_workers + 1
    return next(step for step in range(1 << 20) if strategy.is_synchronised(step)) + 2


def _drifts(seen: Seen) -> Iterator[dict[str, Any]]:
    """Distances from the mean replica after every step, in lengths of the longest update so far of any worker."""
    for optimizer, workers in seen.items():
        longest = 0.0
        for step in range(len(workers[0]["steps"])):
            longest = max([longest, *(worker["steps"][step]["longest_update"] for worker in workers)])
            for worker in workers:
                drift = worker["steps"][step]["distance"] / longest if longest else math.inf
                yield _difference(optimizer, worker["rank"], step, math.inf if math.isnan(drift) else drift)


def _unequal(seen: Seen, strategy: Strategy | None = None) -> Iterator[dict[str, Any]]:
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


def _difference(optimizer: str, rank: int, step: int, error: float) -> dict[str, Any]:
    return {"optimizer": optimizer, "rank": rank, "step": step, "tensor": "all together", "error": error}


def apart_job(context: Context, recipe: Recipe, strategy: str) -> dict[str, Any]:
    """One worker: train, and after every step measure how far the replica is from the mean of all."""
    trainer = make_trainer(context, recipe, strategy)
    comm, parameters, optimizer = context.comm, trainer.worker.parameters, trainer.worker.optimizer
    before, own = new_vector(parameters), new_vector(parameters)
    steps: list[dict[str, Any]] = []
    counted: list[list[Any]] = []
    predicted: list[list[Any]] = []
    update_lengths: list[float] = []

    def remember(*_: Any) -> None:
        pack(parameters, before)

    def measure(*_: Any) -> None:
        pack(parameters, own)
        update_lengths.append(float(torch.linalg.vector_norm(own - before)))

    optimizer.register_step_pre_hook(remember)
    optimizer.register_step_post_hook(measure)
    comm.counter.clear()

    def look(step: int) -> None:
        counted.append(_plain(comm.counter))
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        predicted.append(_plain(Counter.of(operations)))
        comm.counter.clear()
        pack(parameters, own)
        mean = own / comm.world_size
        with comm.uncounted():
            comm.all_reduce(mean)
        distance = float(torch.linalg.vector_norm(own - mean))
        row = {"step": step, "distance": distance, "longest_update": max(update_lengths)}
        steps.append({**row, "digest": parameter_digest(trainer.model)})

    trainer.run(look)
    trainer.strategy.finish()
    return {
        "rank": context.rank,
        "steps": steps,
        "counted": counted,
        "predicted": predicted,
        "final_digest": parameter_digest(trainer.model),
    }


def _plain(counter: Counter) -> list[Any]:
    return sorted([op, -1 if peer is None else peer, nbytes] for (op, peer), nbytes in counter.nbytes.items())
