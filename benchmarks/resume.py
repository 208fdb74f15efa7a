"""Exact resume: kill runs at random steps, continue them, and compare the weights with runs that were not killed.

    python benchmarks/resume.py --points 200 --seed 0 --state points.jsonl

A point is a random exact strategy, comm, number of workers, optimiser, interval between checkpoints and step at which
a random worker or the process that started the workers is killed (SIGKILL). The killed run continues from its newest
whole checkpoint. The parameters of every worker must then equal, bit for bit, those of a run with the same seed that
was not killed. Prints a line per point, and a table with the number of equal ones. With `--state`, the points that the
file has are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.comm import comms
from paceline.errors import UsageError, WorkerError
from paceline.launch.local import LocalPool
from paceline.recipe import Recipe
from paceline.results import RunResult
from paceline.runs import Folder
from paceline.strategies import Guarantee, StrategySpec, available_strategies
from paceline.study.entries import make_entry
from paceline.study.resumption import Resumption, find_resumption, read_unfinished
from paceline.study.run import execute

STEPS = 24
COMMS = ("torch", "shm", "hierarchical")
OPTIMIZERS = {
    "sgd": {"optimizer.momentum": 0.9},
    "adam": {"optimizer.name": "adam", "optimizer.momentum": 0.0, "optimizer.lr": 0.002},
    "lamb": {"optimizer.name": "lamb", "optimizer.momentum": 0.0, "optimizer.lr": 0.002},
}
MOST_PROCESSES = 5  # four workers and a server
KILL_S = 120.0


@dataclass(frozen=True)
class Point:
    """One random case."""

    number: int
    strategy: str
    comm: str
    workers: int
    optimizer: str
    every: int  # steps between checkpoints
    killed_at: int  # step
    victim: str  # the rank of a worker, or "parent"

    def recipe(self) -> Recipe:
        plain = {
            "data.train_samples": 110,  # the last batch of an epoch is not full
            "data.test_samples": 10,
            "train.batch_size": 12,
            "train.iterations": STEPS,
            "train.checkpoint_every": f"{self.every}steps",
            "measure.spans": False,
            "measure.sample_hz": 0.0,
            "strategy": self.strategy,
            "comm": self.comm,
            "workers": self.workers,
            "seed": self.number,
        }
        return Recipe().replace(plain | OPTIMIZERS[self.optimizer])


def random_point(seed: int, number: int) -> Point:
    chosen = random.Random(f"{seed}-{number}")
    exact = [name for name in available_strategies() if StrategySpec.parse(name).build().guarantee is Guarantee.EXACT]
    while True:
        workers = chosen.randint(2, 4)
        point = Point(
            number,
            chosen.choice(exact),
            chosen.choice([name for name in COMMS if not comms.get(name).unavailable()]),
            workers,
            chosen.choice(list(OPTIMIZERS)),
            chosen.randint(1, 8),
            chosen.randint(2, STEPS - 1),
            chosen.choice(["parent", *map(str, range(workers))]),
        )
        try:
            make_entry(point.strategy, point.recipe())
        except UsageError:
            continue  # such as sharded with lamb
        return point


def train(pool: LocalPool, recipe: Recipe, folder: Folder, resume: Resumption | None = None) -> RunResult:
    entry = make_entry(recipe.strategy, recipe)
    result = execute(pool, recipe, entry, folder=folder, on_event=lambda event: None, resume=resume)  # noqa: ARG005
    assert result is not None
    return result


def die(pool: LocalPool, point: Point, folder: Path) -> Path:
    """Run a point until it is killed, and return the folder of the killed run."""
    if point.victim != "parent":
        fault = f"kill:rank={point.victim},step={point.killed_at}"
        try:
            train(pool, point.recipe().replace({"measure.inject": [fault]}), Folder(folder.parent, folder.name))
        except WorkerError:
            return folder
        raise AssertionError("the worker was not killed")
    command = [sys.executable, __file__, "--die", json.dumps(asdict(point)), "--folder", str(folder)]
    done = subprocess.run(command, check=False, timeout=KILL_S)
    assert done.returncode == -signal.SIGKILL, f"the parent ended with {done.returncode}"
    [killed] = [path for path in folder.parent.iterdir() if folder.name in path.name]
    return killed


def die_as_parent(point: Point, folder: Path) -> None:
    """Train in this process's workers, and kill this process when a worker reports the step."""

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "log" and event["step"] >= point.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    recipe = point.recipe().replace({"train.log_every": 1})
    with LocalPool(MOST_PROCESSES) as pool:
        entry = make_entry(recipe.strategy, recipe)
        execute(pool, recipe, entry, folder=Folder(folder.parent, folder.name), on_event=kill)


def check(pool: LocalPool, point: Point) -> dict[str, Any]:
    """Run a point: whole, killed and continued. Return what happened."""
    with tempfile.TemporaryDirectory() as out:
        whole = train(pool, point.recipe(), Folder(Path(out), "whole"))
        killed = die(pool, point, Path(out) / "killed")
        recipe = read_unfinished(killed, {})
        resume = find_resumption(killed, make_entry(recipe.strategy, recipe).recipe(recipe))
        result = train(pool, recipe, Folder.reopen(killed), resume)
    digests = [[worker.parameter_digest for worker in run.per_worker] for run in (whole, result)]
    is_equal = digests[0] == digests[1] and result.curve.loss == whole.curve.loss
    return {**asdict(point), "resumed_at": resume.step, "is_equal": is_equal}


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--points", type=int, default=200)
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--state", default="")
    words.add_argument("--die", default="", help=argparse.SUPPRESS)
    words.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.die:
        die_as_parent(Point(**json.loads(asked.die)), asked.folder)
        return
    state = Path(asked.state) if asked.state else None
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    rows = [row for row in map(json.loads, lines) if row["seed"] == asked.seed]
    known = {row["number"] for row in rows}
    with LocalPool(MOST_PROCESSES) as pool:
        for number in range(asked.points):
            if number in known:
                continue
            row = {"seed": asked.seed, **check(pool, random_point(asked.seed, number))}
            rows.append(row)
            print(json.dumps(row), flush=True)
            if state is not None:
                with state.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows = [row for row in rows if row["number"] < asked.points]
    for key in ("strategy", "comm", "workers", "optimizer", "victim"):
        total = Counter(str(row[key]) for row in rows)
        equal = Counter(str(row[key]) for row in rows if row["is_equal"])
        print(f"{key:10} " + ", ".join(f"{name} {equal[name]}/{total[name]}" for name in sorted(total)))
    print(f"equal      {sum(row['is_equal'] for row in rows)} of {len(rows)}")


if __name__ == "__main__":
    main()
