"""Proof of exactness: compare all replicas after every synchronisation, and the final one with the oracle."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.data import load_data
from paceline.launch.base import Task, WorkerPool
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.results import received
from paceline.results.commands import ReplicaReport
from paceline.results.study import Proof
from paceline.study.judges import EXACT_TOLERANCE, or_infinite
from paceline.study.verify_replicas import replica_job
from paceline.train.context import ignore_event
from paceline.train.oracle import oracle_steps


def prove(recipe: Recipe, strategies: Sequence[str], launcher: WorkerPool) -> Iterator[Proof]:
    """Yield a row per strategy: the synchronisations with bitwise equal replicas, and the final error.

    Training runs in float64, so that rounding does not hide an error of the algorithm.
    """
    recipe = recipe.replace({"train.precision": "fp64", "train.eval_every": 0, "train.log_every": 0})
    with tempfile.TemporaryDirectory(prefix="paceline-oracle-") as folder:
        oracle = f"{folder}/oracle"
        _write_oracle(recipe, Path(f"{oracle}-final.safetensors"))
        for strategy in strategies:
            yield _prove(recipe, strategy, launcher, oracle)


def _write_oracle(recipe: Recipe, file: Path) -> None:
    """Write the oracle's parameters after the last step."""
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    last: dict[str, Tensor] = {}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)  # more threads contend on a busy machine
    try:
        for parameters in oracle_steps(recipe, data, build_model(recipe.model.name, data), recipe.workers):
            last = parameters
    finally:
        torch.set_num_threads(num_threads)
    save_file(last, file)


def _prove(recipe: Recipe, strategy: str, launcher: WorkerPool, oracle: str) -> Proof:
    arguments = {"recipe": recipe, "strategy": strategy, "oracle": oracle}
    task = Task(replica_job, arguments, num_workers=recipe.workers, comm=recipe.comm, timeout_s=recipe.timeout_s)
    return compare_digests(strategy, received(launcher.run(task, ignore_event), ReplicaReport))


def compare_digests(strategy: str, workers: Sequence[ReplicaReport]) -> Proof:
    """Compare the digests of all ranks step by step."""
    steps = list(zip(*([step.digest for step in worker.steps] for worker in workers), strict=True))
    unequal = [number for number, digests in enumerate(steps) if len(set(digests)) > 1]
    moved = len({digests[0] for digests in steps}) == len(steps)
    error = max(or_infinite(worker.final_relative_error) for worker in workers)
    return Proof(
        strategy=strategy,
        ranks=len(workers),
        synchronisations=len(steps),
        equal=len(steps) - len(unequal),
        first_unequal=unequal[0] if unequal else None,
        max_relative_error=error,
        tolerance=EXACT_TOLERANCE,
        passed=not unequal and moved and error <= EXACT_TOLERANCE,
    )
