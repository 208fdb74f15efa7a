"""The equivalence certificate: every strategy against one process that plays all workers, in float64."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from paceline.comm import Counter, comms
from paceline.data import load_data
from paceline.errors import UsageError
from paceline.launch.base import Launcher, Task
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, StrategySpec, strategies
from paceline.study.entries import make_entry, reason_against
from paceline.train.context import Context
from paceline.train.job import make_trainer
from paceline.train.oracle import oracle_steps

STEPS = 3
EXACT_TOLERANCE = 1e-9  # float64 rounds at 1e-16; a few steps of training amplify that by orders, not by seven
# A lossy mean is held to its codec's error in the first step alone: that moves by the mean gradient, and nothing is
# left over from before, while later gradients are taken at points that differ already.
REALLY_DIFFERENT = 1e-6

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.002},
}
# 17 samples in batches of 7: shards of 7 over 2, 3 and 4 workers are uneven, and the third step has 3 samples,
# fewer than four workers.
DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
SAMPLES, BATCH = 17, 7


@dataclass(frozen=True)
class Case:
    """One line of the certificate."""

    strategy: str
    world_size: int
    model: str


def cases(
    names: Sequence[str], world_sizes: Sequence[int], models: Sequence[str], *, comm: str = "torch"
) -> list[Case]:
    """What is to be judged; without names every strategy that the comm can carry."""
    reason = reason_against(comm)
    if reason:
        raise UsageError(f"comm {comm!r} cannot be used here: {reason}")
    names = list(names) or [name for name in strategies.classes if name not in not_carried(comm)]
    for name in names:
        for model in models:
            make_entry(name, _recipe(model, 1, "sgd").replace({"comm": comm}))
    return [Case(name, size, model) for model in models for size in world_sizes for name in names]


def not_carried(comm: str) -> dict[str, str]:
    """The strategies that a comm cannot carry, with the reasons."""
    reasons = {name: cls.unsupported(comms.get(comm)) for name, cls in strategies.classes.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def verify(
    todo: Sequence[Case], launcher: Launcher, *, comm: str = "torch", on_case: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Judge every case; rows in the order of the cases."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in todo:
        groups.setdefault((case.model, case.world_size), []).append(case)
    rows: dict[Case, dict[str, Any]] = {}
    for (model, world_size), group in groups.items():
        with tempfile.TemporaryDirectory(prefix="paceline-oracle-") as folder:
            spread = _write_oracle(Path(folder), model, world_size)
            for case in group:
                rows[case] = _judge(case, launcher, comm, folder, spread)
                on_case(rows[case])
    return [rows[case] for case in todo]


def _recipe(model: str, world_size: int, optimizer: str) -> Recipe:
    known = {"model.name": model, "data.name": DATA.get(model, "synthetic:3x32x32x10")}
    shape = {
        "data.train_samples": SAMPLES,
        "data.test_samples": 4,
        "train.batch_size": BATCH,
        "train.precision": "fp64",
    }
    length = {"workers": world_size, "train.iterations": STEPS}
    return Recipe().replace({**known, **shape, **length, **OPTIMIZERS[optimizer]})


def _write_oracle(folder: Path, model_name: str, world_size: int) -> float:
    """The oracle's parameters after every step, in files; and its spread in the first step."""
    spreads: list[float] = []
    for optimizer in OPTIMIZERS:
        recipe = _recipe(model_name, world_size, optimizer)
        torch.manual_seed(recipe.seed)
        data = load_data(recipe.data, seed=recipe.seed)
        model = build_model(recipe.model.name, data)
        start = {name: parameter.detach().double().clone() for name, parameter in model.named_parameters()}
        save_file(start, folder / f"{optimizer}-start.safetensors")
        for step, parameters in enumerate(oracle_steps(recipe, data, model, world_size, spreads.append)):
            save_file(parameters, folder / f"{optimizer}-{step}.safetensors")
    return spreads[0]  # every optimiser's first gradient is the same


def _judge(case: Case, launcher: Launcher, comm: str, folder: str, spread: float) -> dict[str, Any]:
    strategy = StrategySpec.parse(case.strategy).build()
    guarantee = strategy.guarantee
    per_optimizer = {}
    for optimizer in OPTIMIZERS if guarantee is not Guarantee.LOSSY else ["sgd"]:  # Adam turns rounding into signs
        recipe = _recipe(case.model, case.world_size, optimizer)
        arguments = {"recipe": recipe, "strategy": case.strategy, "oracle": f"{folder}/{optimizer}"}
        task = Task(verify_job, arguments, num_workers=case.world_size, comm=comm)
        per_optimizer[optimizer] = launcher.run(task, lambda event: None)  # noqa: ARG005
    tolerance = EXACT_TOLERANCE
    measure = "relative_error"
    if guarantee is Guarantee.LOSSY:
        # Codecs state their error relative to what workers put in; what the step moved is shorter by the spread.
        tolerance = strategy.codec.error_bound(case.world_size) * spread
        measure = "relative_to_path"
    found = list(_differences(per_optimizer, measure))
    if guarantee is Guarantee.LOSSY:
        found = [difference for difference in found if difference["step"] == 0 or math.isinf(difference["error"])]
    worst = max(found, key=lambda d: d["error"])
    first = next((d for d in sorted(found, key=lambda d: (d["step"], d["rank"])) if d["error"] > tolerance), None)
    bytes_equal = all(worker["counted"] == worker["predicted"] for run in per_optimizer.values() for worker in run)
    agree = worst["error"] <= tolerance and bytes_equal
    if guarantee is Guarantee.NONE:
        meets = bytes_equal and (case.world_size == 1 or worst["error"] > REALLY_DIFFERENT)
    else:
        meets = agree
    return {
        "strategy": case.strategy,
        "world_size": case.world_size,
        "model": case.model,
        "comm": comm,
        "guarantee": guarantee.value,
        "max_relative_error": worst["error"],
        "tolerance": tolerance,
        # A strategy that promises nothing has nothing to pass.
        "passed": agree and guarantee is not Guarantee.NONE,
        "meets_guarantee": meets,
        "bytes_as_predicted": bytes_equal,
        "first_divergence": first,
        "optimizers": list(per_optimizer),
        "steps": STEPS,
    }


def _differences(per_optimizer: dict[str, list[dict[str, Any]]], measure: str) -> Iterator[dict[str, Any]]:
    for optimizer, workers in per_optimizer.items():
        for worker in workers:
            for row in worker["steps"]:
                where = {"optimizer": optimizer, "rank": worker["rank"], "step": row["step"], "tensor": row["tensor"]}
                yield {**where, "error": _or_infinite(row[measure])}


def _or_infinite(error: float) -> float:
    """Not a number is the largest difference there is: no comparison may overlook it."""
    return math.inf if math.isnan(error) else error


def verify_job(context: Context, recipe: Recipe, strategy: str, oracle: str) -> dict[str, Any]:
    """One worker: train, and compare the replica with the oracle's after every step."""
    trainer = make_trainer(context, recipe, strategy)
    comm = context.comm
    comm.counter.clear()
    parameters = dict(trainer.model.named_parameters())
    start = load_file(f"{oracle}-start.safetensors")
    steps: list[dict[str, Any]] = []
    counted: list[list[Any]] = []
    predicted: list[list[Any]] = []

    def compare_with_oracle(step: int) -> None:
        expected = load_file(f"{oracle}-{step}.safetensors")
        off = {n: float((parameters[n].detach() - expected[n]).square().sum()) for n in expected}
        length = {n: float(expected[n].square().sum()) for n in expected}
        path = sum(float((expected[n] - start[n]).square().sum()) for n in expected)
        total = sum(off.values())
        steps.append(
            {
                "step": step,
                "relative_error": (total / sum(length.values())) ** 0.5,
                "relative_to_path": (total / path) ** 0.5,
                "tensor": max(off, key=lambda n: _or_infinite(off[n] / (length[n] or 1.0))),
            }
        )
        counted.append(_plain(comm.counter))
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        predicted.append(_plain(Counter.of(operations)))
        comm.counter.clear()

    trainer.run(compare_with_oracle)
    return {"rank": context.rank, "steps": steps, "counted": counted, "predicted": predicted}


def _plain(counter: Counter) -> list[Any]:
    return sorted([op, -1 if peer is None else peer, nbytes] for (op, peer), nbytes in counter.nbytes.items())
