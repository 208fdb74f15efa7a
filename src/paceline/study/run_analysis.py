"""Analysis of the workers' files of a run: split of the step time, stragglers, links, and the merged trace."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.comm import comms
from paceline.errors import UsageError
from paceline.measure.analysis import Analysis, analyse_folder
from paceline.measure.split import Factors
from paceline.measure.steps import StepRange
from paceline.measure.trace_file import TraceSummary, write_merged
from paceline.recipe import Recipe
from paceline.results import Link, RunResult, Straggler, changed
from paceline.results.worker_report import WorkerReport
from paceline.runs import list_runs, read


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Analysis of the workers' files, and the bytes of each link."""

    analysis: Analysis = field(default_factory=Analysis)
    links: list[Link] | None = None


def measure_run(recipe: Recipe, workers: Sequence[WorkerReport], folder: Path | None) -> Measured:
    """Analyse the workers' files, and collect the links from their reports."""
    analysis = Analysis()
    if folder is not None and (folder / "workers").is_dir():
        first, last = timed_steps(recipe, len(workers[0].iteration_s))
        analysis = analyse_folder(folder, first=first, last=last, factors=_factors(recipe.comm, len(workers)))
    links = [link for worker in workers for link in worker.links]
    return Measured(analysis=analysis, links=links or None)


def timed_steps(recipe: Recipe, num_steps: int) -> tuple[int, int]:
    """Return the first and last timed step. The warm-up is included if no step would be left without it."""
    last = min(num_steps, recipe.train.timed_iterations or num_steps) - 1
    first = recipe.train.warmup_iterations
    return (first, last) if first <= last else (0, last)


def agreed_stragglers(repeats: Sequence[RunResult]) -> list[Straggler] | None:
    """Return the stragglers found in most repeats for the same phase, with medians of their figures.

    None: not measured, or too few steps or workers.
    """
    measured = [repeat.stragglers for repeat in repeats if repeat.stragglers is not None]
    if not measured:
        return None
    found: dict[tuple[int, str], list[Straggler]] = {}
    for repeat in measured:
        for one in repeat:
            found.setdefault((one.rank, one.phase), []).append(one)
    kept = [_median_straggler(ones) for ones in found.values() if len(ones) > len(measured) / 2]
    return sorted(kept, key=lambda one: -one.excess_s)


def _median_straggler(ones: list[Straggler]) -> Straggler:
    return changed(
        ones[0],
        excess_s=statistics.median(one.excess_s for one in ones),
        excess_percent=statistics.median(one.excess_percent for one in ones),
        interval95_percent=tuple(statistics.median(one.interval95_percent[end] for one in ones) for end in (0, 1)),
        steps=sum(one.steps for one in ones),
    )


def _factors(comm_name: str, world_size: int) -> Factors:
    comm = comms.get(comm_name)

    def factors(op: str, peer: int | None, rank: int) -> tuple[float, float]:
        # A barrier has no payload.
        return (0.0, 0.0) if op == "barrier" else comm.wire_factors(op, peer, rank, world_size)

    return factors


def trace_run(path: Path, *, target: Path | None = None, steps: StepRange | None = None) -> TraceSummary:
    """Write the merged trace of one run; raise UsageError for a study."""
    stored = read(path)
    folder = stored.folder
    if stored.kind != "run":
        inner = [str(run.folder) for run in list_runs(folder / "runs")]
        named = f"name one of its runs: {', '.join(inner)}" if inner else "it has no runs"
        raise UsageError(f"{str(path)!r} is a study, but a trace is made from one run; {named}")
    return write_merged(folder, target, steps)
