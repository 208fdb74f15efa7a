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
