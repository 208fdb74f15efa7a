"""Whether an average is one: every rank's replica after every synchronisation, and the last one against the oracle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from paceline.data import load_data
from paceline.launch.base import Task, WorkerPool
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.study.judges import EXACT_TOLERANCE
from paceline.train.context import Context
from paceline.train.job import make_trainer
from paceline.train.oracle import oracle_steps
from paceline.train.replicas import parameter_digest


def prove(recipe: Recipe, strategies: tuple[str, ...], launcher: WorkerPool) -> list[dict[str, Any]]:
    """A row per strategy: after how many synchronisations all ranks held the same bits, and how far the oracle is.

    In float64, so that the distance to the oracle is that of the algorithm and not of rounding.
    """
    recipe = recipe.replace({"train.precision": "fp64", "train.eval_every": 0, "train.log_every": 0})
    with tempfile.TemporaryDirectory(prefix="paceline-oracle-") as folder:
        oracle = Path(folder) / "last.safetensors"
        _write_oracle(recipe, oracle)
        return [_prove(recipe, strategy, launcher, str(oracle)) for strategy in strategies]


def _write_oracle(recipe: Recipe, file: Path) -> None:
    """The parameters of one process that plays all workers, after the last step."""
    torch.manual_seed(recipe.seed)
    data = load_data(recipe.data, seed=recipe.seed)
    last: dict[str, Any] = {}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(recipe.threads)  # on a busy machine more of them wait for one another
    try:
        for parameters in oracle_steps(recipe, data, build_model(recipe.model.name, data), recipe.workers):
            last = parameters
    finally:
        torch.set_num_threads(num_threads)
    save_file(last, file)


def _prove(recipe: Recipe, strategy: str, launcher: WorkerPool, oracle: str) -> dict[str, Any]:
    arguments = {"recipe": recipe, "strategy": strategy, "oracle": oracle}
    task = Task(digests_job, arguments, num_workers=recipe.workers, comm=recipe.comm, timeout_s=recipe.timeout_s)
    workers = launcher.run(task, _ignore)
    return {"strategy": strategy, **compare_digests(workers)}


def compare_digests(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the digests of all ranks say, step by step."""
    steps = list(zip(*(worker["digests"] for worker in workers), strict=True))
    unequal = [number for number, digests in enumerate(steps) if len(set(digests)) > 1]
    moved = len({digests[0] for digests in steps}) == len(steps)
    error = max(worker["relative_error"] for worker in workers)
    return {
        "ranks": len(workers),
        "synchronisations": len(steps),
        "equal": len(steps) - len(unequal),
        "first_unequal": unequal[0] if unequal else None,
        "max_relative_error": error,
        "tolerance": EXACT_TOLERANCE,
        "passed": not unequal and moved and error <= EXACT_TOLERANCE,
    }


def digests_job(context: Context, recipe: Recipe, strategy: str, oracle: str) -> dict[str, Any]:
    """One worker: train, and note the replica's digest after every step."""
    trainer = make_trainer(context, recipe, strategy)
    digests: list[str] = []

    def look(step: int) -> None:
        del step
        digests.append(parameter_digest(trainer.model))

    trainer.run(look)
    trainer.strategy.finish()
    expected = load_file(oracle)
    parameters = dict(trainer.model.named_parameters())
    off = sum(float((parameters[name].detach() - expected[name]).square().sum()) for name in expected)
    length = sum(float(expected[name].square().sum()) for name in expected)
    return {"rank": context.rank, "digests": digests, "relative_error": (off / length) ** 0.5}


def _ignore(event: dict[str, Any]) -> None:
    del event
