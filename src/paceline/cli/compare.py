from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.parts.options import Json, MetricsHost, MetricsPort, Out, host_options, recipe_options

ORDER = 1


@recipe_options(leave_out=("strategy",))
@host_options
def compare(
    recipe: Any,
    launch: Any,
    repeats: Annotated[int, typer.Option("--repeats", help="Times that every strategy runs, in turn.", min=1)] = 1,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML page beside the results.")] = True,
    out: Out = Path("runs"),
    json_target: Json = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Train one recipe under several strategies and compare them."""
    from paceline.cli.parts.conditions import show_conditions
    from paceline.cli.parts.ending import tell_where
    from paceline.cli.parts.fetching import fetch_if_needed
    from paceline.cli.parts.metrics import Together, serving
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.progress import Bars
    from paceline.cli.parts.session import launched, launcher_for, where
    from paceline.cli.parts.stored import show_study
    from paceline.cli.parts.view import processes_of
    from paceline.study.compare import compare as run_study
    from paceline.study.compare import prepare
    from paceline.study.entries import settle_comm

    check_json_target(json_target)
    starter = launcher_for(launch, recipe.cluster)
    fetch_if_needed(recipe.data, console_for(json_target))
    recipe = settle_comm(recipe, starter.describe().num_hosts)
    entries, facts = prepare(recipe)
    with launched(max(entry.num_processes for entry in entries), starter) as launcher:
        console = console_for(json_target, is_main=launcher.is_main)
        console.print(
            f"{recipe.name}: {recipe.model.name} ({facts.num_parameters:,} parameters) on "
            f"{recipe.data.name} ({facts.num_train_samples:,} samples), global batch {recipe.batch_size}, "
            f"{facts.total_steps} steps, {recipe.workers} workers, comm {recipe.comm}{where(starter)}",
            markup=False,
        )
        for entry in entries:
            if entry.num_servers:
                console.print(f"{entry.label}: {processes_of(entry)}", markup=False)
        with (
            serving(metrics_port, metrics_host, console, is_main=launcher.is_main) as followers,
            Bars(entries, repeats=repeats, total_steps=facts.total_steps, console=console) as bars,
        ):
            told = Together([bars, *followers])
            outcome = run_study(
                recipe, entries, launcher, repeats=repeats, out=out, listener=told, total_steps=facts.total_steps
            )
    if outcome is None:
        return
    study, folder = outcome
    show_study(console, study)
    show_conditions(console, recipe.to_dict(), study["results"])
    tell_where(console, folder, with_page=report)
    write_json(study, json_target)


def register(app: typer.Typer) -> None:
    app.command()(compare)
