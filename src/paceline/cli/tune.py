from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.parts.hosting import host_options
from paceline.cli.parts.options import Json, Out, recipe_options

ORDER = 3

PANEL = "Tuning"


@recipe_options(leave_out=("strategies",))
@host_options
def tune(
    recipe: Any,
    launch: Any,
    within: Annotated[
        float, typer.Option(help="Points of accuracy that may be lost against exact.", rich_help_panel=PANEL, min=0)
    ] = 0.5,
    within_loss: Annotated[
        float,
        typer.Option(
            help="Percent by which the test loss may be above exact's, where accuracy says nothing.",
            rich_help_panel=PANEL,
            min=0,
        ),
    ] = 2.0,
    strategies: Annotated[
        str, typer.Option(help="Strategies to choose from, separated by commas.", rich_help_panel=PANEL)
    ] = "",
    buckets: Annotated[
        str, typer.Option(help="Bucket sizes in MB; shares of the model unless given.", rich_help_panel=PANEL)
    ] = "",
    codecs: Annotated[str, typer.Option(help="Codecs to choose from.", rich_help_panel=PANEL)] = "",
    periods: Annotated[str, typer.Option(help="Steps between two synchronisations.", rich_help_panel=PANEL)] = "",
    eta: Annotated[
        int, typer.Option(help="One in so many goes on to a rung so many times as long.", rich_help_panel=PANEL, min=2)
    ] = 3,
    repeats: Annotated[
        int, typer.Option(help="Times that finalists run, each with a seed of its own.", rich_help_panel=PANEL, min=1)
    ] = 3,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML page beside the results.")] = True,
    out: Out = Path("runs"),
    json_target: Json = "",
) -> None:
    """Find the bucket size, sync period, codec and strategy that suit a recipe."""
    from paceline.cli.parts.conditions import show_conditions
    from paceline.cli.parts.ending import tell_where
    from paceline.cli.parts.fetching import fetch_if_needed
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.points import follow_points
    from paceline.cli.parts.session import launched, launcher_for, where
    from paceline.cli.parts.tuned import numbers_in, rung_line, show_plan, show_tuning, words_in
    from paceline.study.candidates import CODECS, PERIODS, STRATEGIES, Space
    from paceline.study.entries import settle_comm
    from paceline.study.halving import Margins
    from paceline.study.tune import prepare
    from paceline.study.tune import tune as run_study

    starter = launcher_for(launch, recipe.cluster, only_once="tune")
    check_json_target(json_target)
    console = console_for(json_target)
    fetch_if_needed(recipe.data, console)
    recipe = settle_comm(recipe, starter.describe().num_hosts)
    space = Space(
        strategies=words_in(strategies) or STRATEGIES,
        buckets_mb=numbers_in("--buckets", buckets),
        codecs=words_in(codecs) or CODECS,
        periods=tuple(int(period) for period in numbers_in("--periods", periods, whole=True)) or PERIODS,
    )
    margins = Margins(points=within, loss_percent=within_loss)
    plan = prepare(recipe, space, margins=margins, eta=eta, repeats=repeats)
    show_plan(console, recipe, plan, where(starter))
    with launched(plan.num_processes, starter) as launcher:
        study, folder = run_study(
            recipe,
            plan,
            launcher,
            out=out,
            follow=lambda entries, times, _: follow_points(
                num_runs=len(entries) * times, repeats=times, console=console
            ),
            on_rung=lambda table: console.print(rung_line(table), markup=False),
        )
    show_tuning(console, study, folder)
    show_conditions(console, recipe.to_dict(), study["results"])
    tell_where(console, folder, with_page=report)
    write_json(study, json_target)


def register(app: typer.Typer) -> None:
    app.command()(tune)
