"""The command `trace`: write one trace file of all workers of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import Runs

if TYPE_CHECKING:
    from paceline.measure.trace_file import TraceSummary

ORDER = 5

HELP = """Write one trace of all workers of a run, for ui.perfetto.dev or chrome://tracing.

Without --steps, the trace has the steps recorded by --profile or, if there are none, a few steps from the middle of the run."""  # noqa: E501


def trace(
    name: Annotated[
        str, typer.Argument(help="A run: its name in --runs, a folder, or last, last~1, ...", metavar="RUN")
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", help="File to write (default: merged-trace.json.gz in the run's folder).",
            metavar="FILE.json.gz", show_default=False,
        ),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            "--steps", help="Steps of the trace: 10:20 is steps 10 to 19.",
            metavar="FIRST:END", show_default=False,
        ),
    ] = "",
    runs: Runs = Path("runs"),
) -> None:  # fmt: skip
    from paceline.cli.output import check_target, console_for
    from paceline.measure.steps import StepRange
    from paceline.runs import folder_of
    from paceline.study.run_analysis import trace_run

    check_target("--output", output, endings=(".json", ".json.gz"))
    step_range = StepRange.parse(steps, "--steps") if steps else None
    summary = trace_run(folder_of(name, runs), target=Path(output) if output else None, steps=step_range)
    console = console_for("")
    for line in trace_lines(summary):
        console.print(line, markup=False, soft_wrap=True)


def trace_lines(summary: TraceSummary) -> list[str]:
    """Return lines that describe the trace file and say how to open it."""
    from paceline.present.numbers import counted

    size = f"{summary.path.stat().st_size / 1e6:.2f} MB"
    content = f"{summary.num_events:,} events, {summary.num_arrows:,} arrows, {size}"
    lines = [
        f"trace   {summary.path}",
        f"        {summary.steps} of {counted(summary.num_workers, 'worker')}: {content}",
    ]
    if summary.num_profiled:
        lines.append(f"        with torch profiler events of {counted(summary.num_profiled, 'worker')}")
    if summary.clock_error_s is not None:
        lines.append(f"        clocks of workers differ by at most {1e6 * summary.clock_error_s:,.0f} microseconds")
    return [
        *lines,
        "open    https://ui.perfetto.dev, Open trace file (it stays in the browser), or chrome://tracing, Load",
    ]


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(trace)
