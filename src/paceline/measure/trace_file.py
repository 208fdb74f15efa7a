"""Write the merged trace of a stored run: all workers in one file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import RunError, UsageError
from paceline.measure.steps import StepRange, check_within
from paceline.measure.torch_profiler import FOLDER, ProfiledTrace, profiled_events, read_profiled
from paceline.measure.trace_events import WorkerLines, merged_events, pid_of
from paceline.measure.trace_format import Arrows, write_events
from paceline.worker_files import worker_files, worker_lines

# Name in the run's folder, not in the folder of the workers' own traces, where trace tools read every file.
NAME = "merged-trace.json.gz"
# Limits of a trace without --steps and without profiled steps: a few megabytes, which a viewer opens quickly.
MOST_LINES = 50_000
MOST_STEPS = 100


@dataclass(frozen=True, kw_only=True)
class TraceSummary:
    """Path of a written trace, its range of steps, and how many workers, events and arrows it contains."""

    path: Path
    steps: StepRange
    num_workers: int
    num_profiled: int  # workers with torch profiler events
    num_events: int
    num_arrows: int
    clock_error_s: float | None  # largest possible difference between two workers' clocks; None if unknown


def write_merged(folder: Path, target: Path | None = None, steps: StepRange | None = None) -> TraceSummary:
    """Write a trace with all workers of a run to the file `target`, and return a summary of the trace.

    By default, `target` is the file `NAME` in the run's folder. If `steps` is None, the trace covers the profiled
    steps. If none were profiled, it covers at most MOST_STEPS consecutive recorded steps.
    """
    target = target or folder / NAME
    if target.resolve().parent == (folder / FOLDER).resolve():
        raise UsageError(
            f"{str(target)!r} is in the folder of the workers' own traces, where other programs would read it as one "
            "of them; choose another folder"
        )
    files = worker_files(folder)
    num_lines, total_steps = _count_lines(files)
    if not num_lines:
        raise UsageError(
            f"run {folder.name!r} has nothing to trace: its workers recorded no spans; run it again without "
            "--no-measure"
        )
    profiled = {rank: trace for rank in files if (trace := read_profiled(folder, rank)) is not None}
    steps = _choose_steps(steps, num_lines, total_steps, profiled)
    workers = [WorkerLines.of(rank, worker_lines(file), steps) for rank, file in files.items()]
    arrows = Arrows()
    events = merged_events(workers, arrows)
    included = {rank: trace for rank, trace in profiled.items() if _overlap(trace.steps, steps)}
    for rank, trace in included.items():
        events += profiled_events(trace, pid_of(rank), arrows)
    errors_s = {worker.rank: worker.head.get("clock_error_s") for worker in workers}
    facts = {
        "run": folder.name,
        "first_step": steps.first,
        "end_step": steps.end,
        "clock": "seconds since the run's start, on the clock of worker 0",
        "clock_error_s": errors_s,
    }
    try:
        write_events(target, events, facts)
    except OSError as error:
        raise RunError(f"{str(target)!r} cannot be written: {error.strerror}") from error
    known = [error for error in errors_s.values() if error is not None]
    return TraceSummary(
        path=target,
        steps=steps,
        num_workers=len(workers),
        num_profiled=len(included),
        num_events=len(events),
        num_arrows=sum(event["ph"] == "s" for event in events),
        clock_error_s=sum(sorted(known)[-2:]) if len(known) == len(workers) else None,
    )


def _count_lines(files: dict[int, Path]) -> tuple[Counter[int], int]:
    """Return the number of lines for each recorded step, and the run's number of steps."""
    counts: Counter[int] = Counter()
    total_steps = 0
    for file in files.values():
        for line in worker_lines(file):
            if line["kind"] == "step":
                total_steps = max(total_steps, line["step"] + 1)
            elif line["kind"] in ("span", "op", "blocked"):
                counts[line["step"]] += 1
    return counts, total_steps


def _choose_steps(
    requested: StepRange | None, num_lines: Counter[int], total_steps: int, profiled: dict[int, ProfiledTrace]
) -> StepRange:
    """Return the requested steps or, without a request, the profiled steps.

    If there are no profiled steps either, return the middle of the longest sequence of consecutive recorded steps.
    MOST_LINES and MOST_STEPS limit the number of returned steps.
    """
    recorded = sorted(step for step in num_lines if step < total_steps) or sorted(num_lines)
    if requested is not None:
        check_within(requested, total_steps, "--steps")
        if not any(step in requested for step in recorded):
            nearest = min(recorded, key=lambda step: abs(step - requested.first))
            raise UsageError(
                f"nothing was recorded in {requested}, because a long run keeps the spans of some steps only; the "
                f"nearest recorded step is {nearest}"
            )
        return requested
    if profiled:
        return StepRange(
            min(trace.steps.first for trace in profiled.values()), max(trace.steps.end for trace in profiled.values())
        )
    consecutive = _longest_without_gaps(recorded)
    lines_per_step = sum(num_lines[step] for step in consecutive) / len(consecutive)
    num_steps = min(max(int(MOST_LINES / lines_per_step), 1), MOST_STEPS, len(consecutive))
    first = consecutive[(len(consecutive) - num_steps) // 2]
    return StepRange(first, first + num_steps)


def _longest_without_gaps(steps: list[int]) -> list[int]:
    """Return the longest sequence of consecutive steps."""
    sequences: list[list[int]] = []
    for step in steps:
        if sequences and step == sequences[-1][-1] + 1:
            sequences[-1].append(step)
        else:
            sequences.append([step])
    return max(sequences, key=len)


def _overlap(one: StepRange, other: StepRange) -> bool:
    return one.first < other.end and other.first < one.end
