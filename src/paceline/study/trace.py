"""A trace of a stored run, found by its folder."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import UsageError
from paceline.measure.merged import Written, write_merged
from paceline.measure.steps import StepRange
from paceline.runs import list_runs, read


def trace_run(path: Path, *, target: Path | None = None, steps: StepRange | None = None) -> Written:
    """Write the trace of one run; a study has several, of which one must be named."""
    stored = read(path)
    folder = stored.folder
    if stored.kind != "run":
        inner = [str(run.folder) for run in list_runs(folder / "runs")]
        named = f"name one of its runs: {', '.join(inner)}" if inner else "it has no runs"
        raise UsageError(f"{str(path)!r} is a study, and a trace is of one run; {named}")
    return write_merged(folder, target, steps)


def trace_lines(written: Written) -> list[str]:
    """What was written and how to look at it, in words."""
    workers = "1 worker" if written.num_workers == 1 else f"{written.num_workers} workers"
    size = f"{written.path.stat().st_size / 1e6:.2f} MB"
    lines = [
        f"trace   {written.path}",
        f"        {written.steps} of {workers}: {written.num_events:,} events, {written.num_arrows:,} arrows, {size}",
    ]
    if written.num_profiled:
        of = "1 worker" if written.num_profiled == 1 else f"{written.num_profiled} workers"
        lines.append(f"        with what torch's profiler saw of {of}")
    if written.clock_error_s is not None:
        lines.append(f"        clocks of workers agree to {1e6 * written.clock_error_s:,.0f} microseconds")
    return [
        *lines,
        "open    https://ui.perfetto.dev, Open trace file (it stays in the browser), or chrome://tracing, Load",
    ]
