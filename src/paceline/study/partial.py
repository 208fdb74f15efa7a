"""Evidence about strategies whose replicas differ between steps: distances from their mean, and digests."""

from __future__ import annotations

from typing import Any

import torch

from paceline.comm import Counter
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, Strategy
from paceline.strategies.capabilities import steps_to_synchronisation
from paceline.strategies.weights import new_vector, pack
from paceline.train.context import Context
from paceline.train.job import make_trainer
from paceline.train.replicas import parameter_digest


def steps_to_see(strategy: Strategy, num_workers: int) -> int:
    """Enough steps for every start of a rotation and one more, or for a synchronisation and one step beyond it."""
    if strategy.guarantee is Guarantee.PARTIAL:
        return num_workers + 1
    return steps_to_synchronisation(strategy) + 1


def apart_job(context: Context, recipe: Recipe, strategy: str) -> dict[str, Any]:
    """One worker: train, and after every step measure how far the replica is from the mean of all."""
    trainer = make_trainer(context, recipe, strategy)
    comm, parameters, optimizer = context.comm, trainer.worker.parameters, trainer.worker.optimizer
    before, own = new_vector(parameters), new_vector(parameters)
    start_digest = parameter_digest(trainer.model)
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
        counted.append(totals(comm.counter))
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        predicted.append(totals(Counter.of(operations)))
        comm.counter.clear()
        pack(parameters, own)
        mean = own / comm.world_size
        with comm.uncounted():
            comm.all_reduce(mean)
        distance = float(torch.linalg.vector_norm(own - mean))
        row = {"step": step, "tensor": "all together", "digest": parameter_digest(trainer.model)}
        steps.append({**row, "distance": distance, "longest_update": max(update_lengths)})

    trainer.run(look)
    trainer.strategy.finish()
    return {
        "rank": context.rank,
        "steps": steps,
        "counted": counted,
        "predicted": predicted,
        "start_digest": start_digest,
        "final_digest": parameter_digest(trainer.model),
    }


def totals(counter: Counter) -> list[list[Any]]:
    """Counted bytes by operation and peer, as plain values that compare equal."""
    return sorted([op, -1 if peer is None else peer, nbytes] for (op, peer), nbytes in counter.nbytes.items())
