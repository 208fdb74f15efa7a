"""The verify command: check in float64 whether strategies meet their guarantees.

Replicas are compared with the oracle, which is the same training in one process, or with each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from paceline.comm import comms
from paceline.data import load_data
from paceline.errors import UsageError
from paceline.launch.base import Task, WorkerPool
from paceline.limits import DEFAULT_TIMEOUT_S
from paceline.models import build_model
from paceline.recipe import Recipe
from paceline.results import convert_reports
from paceline.results.commands import CertificateRow, ReplicaReport
from paceline.results.value import Json
from paceline.strategies import Guarantee, StrategySpec, available_strategies
from paceline.strategies.capabilities import servers_of
from paceline.study.entries import make_entry, reason_against_comm
from paceline.study.judges import Reports, judge, steps_to_judge
from paceline.study.verify_replicas import replica_job
from paceline.train.context import ignore_event
from paceline.train.job import serve_job
from paceline.train.oracle import oracle_steps

STEPS = 3

OPTIMIZERS: dict[str, Json] = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.002},
}
# With 17 samples in batches of 7, workers get unequal numbers of samples: 7 cannot be divided by 2, 3 or 4. The third
# step has 3 samples, so one of four workers gets none.
DATA = {"lenet5": "synthetic:1x28x28x10", "vgg11": "synthetic:3x32x32x10"}
SAMPLES, BATCH = 17, 7


@dataclass(frozen=True)
class Case:
    """One check, which becomes one row of the printed table: a strategy, a number of workers and a model."""

    strategy: str
    world_size: int
    model: str


def cases(
    names: Sequence[str], world_sizes: Sequence[int], models: Sequence[str], *, comm: str = "torch", num_nodes: int = 1
) -> list[Case]:
    """Return all combinations of strategy, number of workers and model to verify.

    If `names` is empty, verify every strategy that the comm (communication backend) supports.
    """
    reason = reason_against_comm(comm, num_nodes)
    if reason:
        raise UsageError(f"comm {comm!r} cannot be used here: {reason}; use another --comm")
    names = list(names) or [name for name in available_strategies() if name not in unsupported_strategies(comm)]
    for name in names:
        for model in models:
            for size in world_sizes:
                make_entry(name, _recipe(model, size, "sgd").replace({"comm": comm}))
    return [Case(name, size, model) for model in models for size in world_sizes for name in names]


def unsupported_strategies(comm: str) -> dict[str, str]:
    """Return the strategies that a comm (communication backend) does not support, with the reasons."""
    reasons = {name: cls.unsupported(comms.get(comm)) for name, cls in available_strategies().items()}
    return {name: reason for name, reason in reasons.items() if reason}


def num_processes(todo: Sequence[Case]) -> int:
    """Return the number of processes (workers and servers) that the largest case needs."""
    return max(
        case.world_size + servers_of(StrategySpec.parse(case.strategy).build(), case.world_size) for case in todo
    )


def verify(
    todo: Sequence[Case],
    launcher: WorkerPool,
    *,
    comm: str = "torch",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    on_case: Callable[[CertificateRow], None],
) -> list[CertificateRow]:
    """Verify every case, and immediately pass its row to `on_case`. Return all rows in the order of the cases."""
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in todo:
        groups.setdefault((case.model, case.world_size), []).append(case)
    rows: dict[Case, CertificateRow] = {}
    for (model, world_size), group in groups.items():
        with tempfile.TemporaryDirectory(prefix="paceline-oracle-") as folder:
            spread = _write_oracle(Path(folder), model, world_size)
            for case in group:
                rows[case] = _judge(case, launcher, comm, folder, spread, timeout_s=timeout_s)
                on_case(rows[case])
    return [rows[case] for case in todo]


def _recipe(model: str, world_size: int, optimizer: str) -> Recipe:
    changes: Json = {"model.name": model, "data.name": DATA.get(model, "synthetic:3x32x32x10"), "workers": world_size}
    changes |= {"data.train_samples": SAMPLES, "data.test_samples": 4, "train.batch_size": BATCH}
    changes |= {"train.precision": "fp64", "train.iterations": STEPS}
    return Recipe().replace({**changes, **OPTIMIZERS[optimizer]})


def _write_oracle(folder: Path, model_name: str, world_size: int) -> float:
    """Train the oracle (the same training in one process), and write its parameters to files.

    The parameters are written before the first step and after every step.

    Return the spread of the first step: the mean norm of the workers' gradients, divided by the norm of the mean
    gradient.
    """
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


def _judge(
    case: Case, launcher: WorkerPool, comm: str, folder: str, spread: float, *, timeout_s: float
) -> CertificateRow:
    strategy = StrategySpec.parse(case.strategy).build()
    guarantee = strategy.guarantee
    num_servers = servers_of(strategy, case.world_size)
    # Replicas that differ between synchronisations are compared with their mean instead of with the oracle.
    compares_with_mean = guarantee is Guarantee.PARTIAL or (guarantee is Guarantee.PERIODIC and not num_servers)
    num_steps = max(STEPS, steps_to_judge(strategy, case.world_size)) if compares_with_mean else STEPS
    reports: Reports = {}
    for optimizer in OPTIMIZERS if guarantee is not Guarantee.LOSSY else ["sgd"]:  # Adam amplifies rounding errors
        recipe = _recipe(case.model, case.world_size, optimizer).replace({"train.iterations": num_steps})
        task = Task(
            replica_job,
            {
                "recipe": recipe,
                "strategy": case.strategy,
                "oracle": "" if compares_with_mean else f"{folder}/{optimizer}",
                # A comparison with the oracle needs no digests of replicas.
                "has_digests": guarantee not in (Guarantee.EXACT, Guarantee.LOSSY, Guarantee.NONE),
                "has_distances": compares_with_mean,
            },
            num_workers=case.world_size,
            num_servers=num_servers,
            serve=serve_job,
            comm=comm,
            timeout_s=timeout_s,
        )
        reports[optimizer] = convert_reports(launcher.run(task, ignore_event), ReplicaReport)
    verdict = judge(strategy, case.world_size, reports, spread)
    bytes_equal = all(worker.counted == worker.predicted for run in reports.values() for worker in run)
    return CertificateRow(
        strategy=case.strategy,
        world_size=case.world_size,
        servers=num_servers,
        model=case.model,
        comm=comm,
        guarantee=guarantee.value,
        max_relative_error=verdict.error,
        tolerance=verdict.tolerance,
        # A strategy without a guarantee cannot pass.
        passed=verdict.is_met and bytes_equal and verdict.has_guarantee,
        meets_guarantee=verdict.is_met and bytes_equal,
        bytes_as_predicted=bytes_equal,
        first_divergence=verdict.first_divergence,
        optimizers=list(reports),
        steps=num_steps,
    )
