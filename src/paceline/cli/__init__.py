"""Command line of Paceline. Each command is a module of this package, and is found by listing the package.

The module of a command has `ORDER` (its position in the list of commands), `register(app)`, and a function or group of
commands with the same name as the module.
"""

from __future__ import annotations

import os
import sys

import typer

import paceline
from paceline.errors import PacelineError, UsageError, WorkerError

INTERRUPTED_CODE = 130  # with which typer exits after a KeyboardInterrupt

HELP = """Train a model with data-parallel workers under several synchronisation strategies, measure them, and compare.

Start with [bold]paceline compare[/bold]: it trains LeNet-5 under several strategies on data that comes with it."""


def make_app() -> typer.Typer:
    """Build the application with all commands."""
    from paceline.cli.lazy_commands import LazyGroup

    app = typer.Typer(
        cls=LazyGroup,
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_version)
    return app


def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        print(f"paceline {paceline.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command in sys.argv.

    On an error, print one sentence. If a worker failed, print its traceback first. The exit code is 2 if the request is
    invalid, and 1 if its execution fails.
    """
    # By default, the C++ code of torch prints a stack trace before Paceline's one-sentence error.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        _run_app()
    except PacelineError as error:
        from paceline.cli.output import PlainConsole
        from paceline.text import shortened

        console = PlainConsole(stderr=True, soft_wrap=True)
        if isinstance(error, WorkerError) and error.traceback:
            console.print(error.traceback, style="dim", markup=False)
        console.print("[bold red]paceline:[/bold red]", end=" ")
        console.print(shortened("; ".join([str(error), *getattr(error, "__notes__", [])])), markup=False)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _run_app() -> None:
    try:
        make_app()(prog_name="paceline")
    except SystemExit as end:
        if end.code == INTERRUPTED_CODE:
            raise KeyboardInterrupt from end
        raise
