"""The command `scale`: measure strategies with different numbers of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.output import comm_of, model_and_data
from paceline.cli.study_session import session_options
from paceline.present.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.recipe import Changes
    from paceline.study.scale import Scale

ORDER = 2
WORKERS = "1,2,3,4"

HELP = """Measure time, speed-up and efficiency of strategies with different numbers of workers.

Every measurement is compared with one worker that runs the same code. Strong scaling keeps the global batch constant (--batch-size); weak scaling keeps the batch of each worker constant (--worker-batch-size; default: the global batch divided by the largest number of workers)."""  # noqa: E501


def _most_workers(arguments: Mapping[str, Any]) -> Changes:
    """Return the change that sets the recipe's `workers` to the largest number of workers to measure."""
    from paceline.study.scale import parse_workers

    return {"workers": max(parse_workers(arguments["workers"]))}


@recipe_options(leave_out=("strategy", "workers"), more_changes=_most_workers)
@host_options
@session_options()
def scale(
    recipe: Any,
    session: Any,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            help="Numbers of workers: 1,2,3,4 or 1-4. One worker is always measured.",
            rich_help_panel="Workers and synchronisation",
        ),
    ] = WORKERS,
    mode: Annotated[
        str, typer.Option("--mode", help="strong (constant global batch), weak (constant batch per worker) or both.")
    ] = "strong",
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", help="Run every measurement N times, in turn; confidence intervals need several.", min=1
        ),
    ] = 1,
) -> None:
    from paceline.errors import RunError
    from paceline.study.scale import Scale, parse_mode, parse_workers

    session.refuse_with_resume(workers=workers != WORKERS, mode=mode != "strong", repeats=repeats != 1)
    modes, numbers = parse_mode(mode), parse_workers(workers)
    outcome = session.run(
        Scale,
        lambda: Scale.prepare(session.prepare_recipe(recipe), numbers, modes, repeats=repeats),
        recipe=recipe,
        own_keys=("workers",),
        introduce=_introduce,
    )
    if outcome is not None and outcome.result.failed:
        failed, first = outcome.result.failed, outcome.result.failed[0]
        where = f"{first.label} on {first.point['workers']} ({first.point['mode']})"
        raise RunError(
            f"{len(failed)} of {outcome.result.num_points} points failed, the others are stored; first: {where}: "
            f"{first.error}"
        )


def _introduce(console: Console, study: Scale, where: str) -> None:
    from paceline.present.scaling_findings import batch_words, refused_words

    numbers = ", ".join(map(str, (1, *study.workers)))
    times = "" if study.repeats == 1 else f", {study.repeats} times each"
    say(
        console,
        f"{model_and_data(study.recipe, study.facts)}, {numbers} workers{where}, "
        f"{comm_of(study.recipe, study.num_processes, where)}; {len(study.jobs)} runs{times}",
    )
    for mode in study.modes:
        say(console, f"{mode}: {batch_words(study.constant_batches, mode)}")
    for one in study.refused:
        say(console, refused_words(one), "yellow")


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(scale)
