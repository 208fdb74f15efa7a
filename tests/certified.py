"""Train a toy model on any comm and compare it with the single-process oracle."""

from __future__ import annotations

from typing import Any

import jobs
from helpers import on_pool, on_threads, on_threads_supported
from paceline.launch.local import LocalPool

# float64 rounds at 1e-16; six steps of training amplify that by less than seven orders of magnitude.
TOLERANCE = 1e-9


def certify(pool: LocalPool, strategy: str, world_size: int, comm: str = "", **arguments: Any) -> list[Any]:
    """Run `jobs.certify` on `comm`; by default on threads if the strategy supports them, else on gloo."""
    comm = comm or ("threads" if on_threads_supported(strategy) else "torch")
    if comm == "threads":
        return on_threads(world_size, jobs.certify, strategy=strategy, **arguments)
    return on_pool(pool, world_size, jobs.certify, comm=comm, strategy=strategy, **arguments)


def assert_exact(workers: list[dict[str, Any]], tolerance: float = TOLERANCE) -> None:
    for rank, worker in enumerate(workers):
        assert len(worker["steps"]) == worker["num_expected"] > 0
        for step, row in enumerate(worker["steps"]):
            assert row["relative_error"] <= tolerance, f"rank {rank}, step {step}"
            assert row["digest"] == workers[0]["steps"][step]["digest"], f"rank {rank} differs in bits at step {step}"


def assert_traffic_as_predicted(workers: list[dict[str, Any]]) -> None:
    for rank, worker in enumerate(workers):
        for step, row in enumerate(worker["steps"]):
            assert row["counted"] == row["predicted"], f"rank {rank}, step {step}"
            assert row["wire"] == row["predicted_wire"], f"rank {rank}, step {step}"
