"""Worker job of `paceline verify` and `paceline reproduce`: train, and inspect the replica after every step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from paceline.comm import Counter
from paceline.recipe import Recipe
from paceline.results.commands import ReplicaReport, ReplicaStep, Traffic
from paceline.results.value import changed
from paceline.strategies.capabilities import metrics_of
from paceline.strategies.weights import new_vector, pack
from paceline.study.judges import missing_as_infinite
from paceline.train.context import Context
from paceline.train.job import make_trainer
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer


def replica_job(
    context: Context,
    recipe: Recipe,
    strategy: str,
    oracle: str = "",
    has_digests: bool = True,
    has_distances: bool = False,
) -> ReplicaReport:
    """Train, and report the counted and the predicted bytes of the communication in every step.

    If `has_digests` is set, the report also has digests of the replica; computing a digest of a large model takes as
    long as a training step. If `has_distances` is set, the report also has the replica's distance from the mean of all
    replicas. `oracle` is a prefix of file names: after each step the replica is compared with the parameters in
    ORACLE-STEP.safetensors, and after the strategy's `finish` with those in ORACLE-final.safetensors, if these files
    exist.
    """
    trainer = make_trainer(context, recipe, strategy)
    comm = context.comm
    comm.counter.clear()
    oracle_files = _OracleFiles(oracle, trainer) if oracle else None
    drift = _Drift(trainer) if has_distances else None

    def digest() -> str:
        return parameter_digest(trainer.model) if has_digests else ""

    start_digest = digest()
    steps: list[ReplicaStep] = []
    counted: list[Traffic] = []
    predicted: list[Traffic] = []

    def inspect(step: int) -> None:
        counted.append(_traffic_of(comm.counter))
        operations = trainer.strategy.traffic(trainer.worker.specs, comm.rank, comm.world_size, step)
        predicted.append(_traffic_of(Counter.of(operations)))
        comm.counter.clear()
        row = ReplicaStep(step=step, digest=digest())
        row = oracle_files.compare(str(step), row) if oracle_files is not None else row
        steps.append(drift.measure(row) if drift is not None else row)

    trainer.run(inspect)
    trainer.strategy.finish()
    final = ReplicaStep(step=len(steps), digest=digest())
    final = oracle_files.compare("final", final) if oracle_files is not None else final
    return ReplicaReport(
        rank=context.rank,
        steps=steps,
        counted=counted,
        predicted=predicted,
        start_digest=start_digest,
        final_digest=final.digest,
        final_relative_error=final.relative_error,
        metrics=metrics_of(trainer.strategy),
    )


class _OracleFiles:
    """Compares a replica with the oracle (the same training in one process), using files of the oracle's parameters.

    The names of all files begin with `prefix`.
    """

    def __init__(self, prefix: str, trainer: Trainer) -> None:
        self._prefix = prefix
        self._parameters = dict(trainer.model.named_parameters())
        self._start = self._load("start")

    def compare(self, name: str, row: ReplicaStep) -> ReplicaStep:
        """Return `row` with the replica's distance from the oracle, or unchanged if there is no oracle file `name`.

        The distance is given relative to the norm of the oracle's parameters, and relative to how far these have moved
        since the start.
        """
        expected = self._load(name)
        if not expected:
            return row
        squared_errors = {n: float((self._parameters[n].detach() - expected[n]).square().sum()) for n in expected}
        squared_norms = {n: float(expected[n].square().sum()) for n in expected}
        total = sum(squared_errors.values())
        path = sum(float((expected[n] - start).square().sum()) for n, start in self._start.items())
        return changed(
            row,
            relative_error=(total / sum(squared_norms.values())) ** 0.5,
            tensor=max(
                squared_errors, key=lambda n: missing_as_infinite(squared_errors[n] / (squared_norms[n] or 1.0))
            ),
            relative_to_path=(total / path) ** 0.5 if self._start else None,
        )

    def _load(self, name: str) -> Mapping[str, Tensor]:
        file = Path(f"{self._prefix}-{name}.safetensors")
        return load_file(file) if file.is_file() else {}


class _Drift:
    """Measures the distance of a replica from the mean of all replicas, and the norm of the largest update so far."""

    def __init__(self, trainer: Trainer) -> None:
        self._comm, self._parameters = trainer.context.comm, trainer.worker.parameters
        self._before, self._own = new_vector(self._parameters), new_vector(self._parameters)
        self._longest = 0.0
        trainer.worker.optimizer.register_step_pre_hook(self._remember)
        trainer.worker.optimizer.register_step_post_hook(self._note_update)

    def measure(self, row: ReplicaStep) -> ReplicaStep:
        pack(self._parameters, self._own)
        mean = self._own / self._comm.world_size
        with self._comm.uncounted():
            self._comm.all_reduce(mean)
        distance = float(torch.linalg.vector_norm(self._own - mean))
        return changed(row, distance=distance, longest_update=self._longest)

    def _remember(self, *_: Any) -> None:
        pack(self._parameters, self._before)

    def _note_update(self, *_: Any) -> None:
        pack(self._parameters, self._own)
        self._longest = max(self._longest, float(torch.linalg.vector_norm(self._own - self._before)))


def _traffic_of(counter: Counter) -> Traffic:
    return sorted((op, -1 if peer is None else peer, nbytes) for (op, peer), nbytes in counter.nbytes.items())
