from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.parts.options import Json, MetricsHost, MetricsPort, Out, host_options, recipe_options

ORDER = 2
WORKERS = "1,2,3,4"

HELP = """Measure how strategies scale with workers: time, speed-up, efficiency, and where a further worker stops paying.

Every point is measured against one worker of the same code. Strong scaling keeps the global batch (--batch-size), weak scaling the batch of each worker (--worker-batch-size, or the global batch over the largest number of workers)."""  # noqa: E501


def _most_workers(arguments: dict[str, Any]) -> dict[str, Any]:
    """The recipe is that of the largest point."""
    from paceline.study.scale_plan import parse_workers

    return {"workers": max(parse_workers(arguments["workers"]))}


@recipe_options(leave_out=("strategy", "workers"), also=_most_workers)
@host_options
def scale(
    recipe: Any,
    launch: Any,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            help="Numbers of workers, as 1,2,3,4 or 1-4; one worker is always measured.",
            rich_help_panel="Workers and how they agree",
        ),
    ] = WORKERS,
    mode: Annotated[
        str, typer.Option("--mode", help="strong (keeps the global batch), weak (keeps each worker's), or both.")
    ] = "strong",
    repeats: Annotated[
        int, typer.Option("--repeats", help="Times that every point runs, in turn; intervals need some.", min=1)
    ] = 1,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML page beside the results.")] = True,
    out: Out = Path("runs"),
    json_target: Json = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    from paceline.cli.parts.conditions import show_conditions
    from paceline.cli.parts.ending import tell_where
    from paceline.cli.parts.fetching import fetch_if_needed
    from paceline.cli.parts.metrics import Together, serving
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.points import follow_points
    from paceline.cli.parts.scaling import show_plan
    from paceline.cli.parts.session import launched, launcher_for
    from paceline.cli.parts.stored import show_study
    from paceline.errors import RunError
    from paceline.study.entries import settle_comm
    from paceline.study.scale import scale as run_study
    from paceline.study.scale_plan import parse_mode, parse_workers, prepare

    check_json_target(json_target)
    modes = parse_mode(mode)
    starter = launcher_for(launch, recipe.cluster)
    fetch_if_needed(recipe.data, console_for(json_target))
    recipe = settle_comm(recipe, starter.describe().num_hosts)
    plan = prepare(recipe, parse_workers(workers), modes)
    with launched(plan.num_processes, starter) as launcher:
        console = console_for(json_target, is_main=launcher.is_main)
        show_plan(console, plan, repeats)
        with (
            serving(metrics_port, metrics_host, console, is_main=launcher.is_main) as followers,
            follow_points(num_runs=len(plan.jobs) * repeats, repeats=repeats, console=console) as bar,
        ):
            told = Together([bar, *followers])
            outcome = run_study(plan, launcher, repeats=repeats, out=out, listener=told)
    if outcome is None:
        return
    study, folder = outcome
    if study["results"]:
        show_study(console, study)
        show_conditions(console, recipe.to_dict(), study["results"])
    tell_where(console, folder, with_page=report and bool(study["results"]))
    write_json(study, json_target)
    if study["failed"]:
        first = study["failed"][0]
        where = f"{first['label']} on {first['point']['workers']} ({first['point']['mode']})"
        raise RunError(
            f"{len(study['failed'])} of {len(plan.points)} points failed, the others are kept; first: {where}: "
            f"{first['error']}"
        )


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(scale)
