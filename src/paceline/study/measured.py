"""What a run's own files say: where its workers' time went, who was slow, who handed how much to whom."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.comm import comms
from paceline.measure.analysis import NOTHING, analyse_folder
from paceline.measure.split import Factors
from paceline.recipe import Recipe

Measured = dict[str, Any]


def measure_run(recipe: Recipe, workers: Sequence[dict[str, Any]], folder: Path | None) -> Measured:
    """The split, the stragglers and the timeline from the workers' files, and the links from their counts."""
    found = dict(NOTHING)
    if folder is not None and (folder / "workers").is_dir():
        num_steps = len(workers[0]["iteration_s"])
        first, last = timed_steps(recipe, num_steps)
        found = analyse_folder(folder, first=first, last=last, factors=_factors(recipe.comm, len(workers)))
    links = [link for worker in workers for link in worker.get("links") or []]
    return {**found, "links": links or None}


def timed_steps(recipe: Recipe, num_steps: int) -> tuple[int, int]:
    """The first and the last step that count: without the warm-up, unless nothing would be left."""
    last = min(num_steps, recipe.train.timed_iterations or num_steps) - 1
    first = recipe.train.warmup_iterations
    return (first, last) if first <= last else (0, last)


def agreed_stragglers(repeats: Sequence[Measured]) -> list[dict[str, Any]] | None:
    """Who was named in most of the repeats, for the same phase, with medians of what they found.

    None: not measured, or too few steps or workers to tell.
    """
    measured = [repeat["stragglers"] for repeat in repeats if repeat.get("stragglers") is not None]
    if not measured:
        return None
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for repeat in measured:
        for one in repeat:
            found.setdefault((one["rank"], one["phase"]), []).append(one)
    agreed = [_median_straggler(ones) for ones in found.values() if len(ones) > len(measured) / 2]
    return sorted(agreed, key=lambda one: -float(one["excess_s"]))


def _median_straggler(ones: list[dict[str, Any]]) -> dict[str, Any]:
    def median(values: list[float]) -> float:
        return statistics.median(values)

    return {
        **ones[0],
        "excess_s": median([one["excess_s"] for one in ones]),
        "excess_percent": median([one["excess_percent"] for one in ones]),
        "interval95_percent": [median([one["interval95_percent"][end] for one in ones]) for end in (0, 1)],
        "steps": sum(one["steps"] for one in ones),
    }


def _factors(comm_name: str, world_size: int) -> Factors:
    comm = comms.get(comm_name)

    def factors(op: str, peer: int | None, rank: int) -> tuple[float, float]:
        # A barrier has no payload, whatever a comm exchanges to keep it.
        return (0.0, 0.0) if op == "barrier" else comm.wire_factors(op, peer, rank, world_size)

    return factors
