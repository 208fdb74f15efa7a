"""The command `scale`: strategies over numbers of workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.study_session import session_options

if TYPE_CHECKING:
    from paceline.recipe import Changes

ORDER = 2
WORKERS = "1,2,3,4"

HELP = """Measure how strategies scale with workers: time, speed-up, efficiency, and where a further worker stops paying.

Every point is measured against one worker of the same code. Strong scaling keeps the global batch (--batch-size), weak scaling the batch of each worker (--worker-batch-size, or the global batch over the largest number of workers)."""  # noqa: E501


def _most_workers(arguments: Mapping[str, Any]) -> Changes:
    """Set the workers of the recipe to the largest number that is measured."""
    from paceline.study.scale import parse_workers

    return {"workers": max(parse_workers(arguments["workers"]))}


@recipe_options(leave_out=("strategy", "workers"), also=_most_workers)
@host_options
@session_options()
def scale(
    recipe: Any,
    session: Any,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            help="Numbers of workers, as 1,2,3,4 or 1-4; one worker is always measured.",
            rich_help_panel="Workers and synchronisation",
        ),
    ] = WORKERS,
    mode: Annotated[
        str, typer.Option("--mode", help="strong (keeps the global batch), weak (keeps each worker's), or both.")
    ] = "strong",
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", help="Repeats of every point, interleaved; confidence intervals need several.", min=1
        ),
    ] = 1,
) -> None:
    from paceline.cli.introductions import introduce_scale
    from paceline.errors import RunError
    from paceline.study.scale import Scale, parse_mode, parse_workers

    session.refuse_beside_resume(workers=workers != WORKERS, mode=mode != "strong", repeats=repeats != 1)
    modes, numbers = parse_mode(mode), parse_workers(workers)
    outcome = session.run(
        Scale,
        lambda: Scale.prepare(session.settled(recipe), numbers, modes, repeats=repeats),
        asked=recipe,
        own_keys=("workers",),
        introduce=introduce_scale,
    )
    if outcome is not None and outcome.result.failed:
        failed, first = outcome.result.failed, outcome.result.failed[0]
        where = f"{first.label} on {first.point['workers']} ({first.point['mode']})"
        raise RunError(
            f"{len(failed)} of {outcome.result.num_points} points failed, the others are kept; first: {where}: "
            f"{first.error}"
        )


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(scale)
