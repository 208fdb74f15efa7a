"""The command `trace`: merge the traces of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import Runs

if TYPE_CHECKING:
    from paceline.measure.trace_file import TraceSummary

ORDER = 5

HELP = """Make one trace of a run for ui.perfetto.dev or chrome://tracing: tracks per worker, arrows between them.

Without --steps: the steps that were profiled (run with --profile), else some in the middle of the run."""


def trace(
    name: Annotated[
        str, typer.Argument(help="A run: a name in --runs, a folder, or last, last~1, ...", metavar="RUN")
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", help="The file to write (default: merged-trace.json.gz in the run's folder).",
            metavar="FILE.json.gz", show_default=False,
        ),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            "--steps", help="Steps to show: 10:20 is steps 10 to 19.",
            metavar="FIRST:END", show_default=False,
        ),
    ] = "",
    runs: Runs = Path("runs"),
) -> None:  # fmt: skip
    from paceline.cli.options import check_trace_target, console_for
    from paceline.measure.steps import StepRange
    from paceline.runs import folder_of
    from paceline.study.run_analysis import trace_run

    check_trace_target(output)
    asked = StepRange.parse(steps, "--steps") if steps else None
    console = console_for("")
    for line in trace_lines(trace_run(folder_of(name, runs), target=Path(output) if output else None, steps=asked)):
        console.print(line, markup=False, soft_wrap=True)


def trace_lines(written: TraceSummary) -> list[str]:
    """The file that was written, and how to open it."""
    from paceline.present.numbers import counted

    size = f"{written.path.stat().st_size / 1e6:.2f} MB"
    content = f"{written.num_events:,} events, {written.num_arrows:,} arrows, {size}"
    lines = [
        f"trace   {written.path}",
        f"        {written.steps} of {counted(written.num_workers, 'worker')}: {content}",
    ]
    if written.num_profiled:
        lines.append(f"        with torch profiler events of {counted(written.num_profiled, 'worker')}")
    if written.clock_error_s is not None:
        lines.append(f"        clocks of workers differ by at most {1e6 * written.clock_error_s:,.0f} microseconds")
    return [
        *lines,
        "open    https://ui.perfetto.dev, Open trace file (it stays in the browser), or chrome://tracing, Load",
    ]


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(trace)
