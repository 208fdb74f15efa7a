from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from paceline.cli.parts.options import Json, MetricsHost, MetricsPort, Out, host_options, recipe_options

ORDER = 2


@recipe_options(leave_out=("strategies",))
@host_options
def run(
    recipe: Any,
    launch: Any,
    out: Out = Path("runs"),
    json_target: Json = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Train one recipe under one strategy and report on every worker."""
    from paceline.cli.parts.conditions import show_conditions
    from paceline.cli.parts.fetching import fetch_if_needed
    from paceline.cli.parts.metrics import Together, serving
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.progress import Bars
    from paceline.cli.parts.session import launched, launcher_for, where
    from paceline.cli.parts.stored import show_run
    from paceline.cli.parts.view import processes_of
    from paceline.runs import SCHEMA, stamped
    from paceline.study.entries import make_entry, settle_comm
    from paceline.study.preflight import preflight
    from paceline.study.run import execute, run_folder

    check_json_target(json_target)
    starter = launcher_for(launch, recipe.cluster)
    fetch_if_needed(recipe.data, console_for(json_target))
    recipe = settle_comm(recipe, starter.describe().num_hosts)
    entry = make_entry(recipe.strategy, recipe)
    facts = preflight(recipe, [entry])
    with launched(entry.num_processes, starter) as launcher:
        console = console_for(json_target, is_main=launcher.is_main)
        console.print(
            f"{recipe.name}: {recipe.model.name} ({facts.num_parameters:,} parameters) on "
            f"{recipe.data.name} ({facts.num_train_samples:,} samples), {processes_of(entry)}, global batch "
            f"{recipe.batch_size}, {facts.total_steps} steps under {entry.label}, comm {recipe.comm}"
            f"{where(starter)}",
            markup=False,
        )
        with serving(metrics_port, metrics_host, console, is_main=launcher.is_main) as followers:
            folder = run_folder(out, stamped(f"{recipe.name}-{entry.label}"), launcher)
            with Bars([entry], repeats=1, total_steps=facts.total_steps, console=console) as bars:
                told = Together([bars, *followers])
                told.started(entry, 0)
                result = execute(
                    launcher, recipe, entry, folder=folder, on_event=lambda event: told.event(entry, event)
                )
                if result is not None:
                    told.done(entry, 0, result)
    if result is None or folder is None:
        return
    show_run(console, result)
    show_conditions(console, recipe.to_dict(), [result])
    console.print(f"run             {folder.path}", markup=False, soft_wrap=True)
    write_json({"schema": SCHEMA, "recipe": recipe.to_dict(), "results": [result]}, json_target)


def register(app: typer.Typer) -> None:
    app.command()(run)
