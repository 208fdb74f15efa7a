"""The command `run`: train one recipe under one strategy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.output import comm_of, length_of, model_and_data, processes_of, show_run, write_json
from paceline.cli.study_session import session_options
from paceline.errors import UsageError
from paceline.present.terminal import say

ORDER = 2


@recipe_options(leave_out=("strategies",))
@host_options
@session_options(leave_out=("resume", "fresh", "trust", "report"))
def run(
    recipe: Any,
    session: Any,
    restarts: Annotated[
        int, typer.Option("--restarts", help="Start the workers again up to N times after a worker fails.", min=0)
    ] = 0,
) -> None:
    """Train one recipe under one strategy, and show the time and result of every worker."""
    from paceline.cli.progress import strategy_progress
    from paceline.cli.study_session import start_workers
    from paceline.results import SCHEMA
    from paceline.runs import timestamped
    from paceline.study.entries import make_entry
    from paceline.study.preflight import preflight
    from paceline.study.run import execute, run_folder

    launcher = session.launcher(recipe.cluster)
    if restarts and not launcher.starts_all:
        raise UsageError(f"--restarts needs one process that starts all workers; leave out {launcher.because}")
    recipe = session.prepare_recipe(recipe)
    entry = make_entry(recipe.strategy, recipe)
    facts = preflight(recipe, [entry])
    where = session.place_words(recipe.cluster)
    with start_workers(entry.num_processes, launcher) as pool:
        say(
            session.console,
            f"{model_and_data(recipe, facts)}, {processes_of(entry)}, global batch {recipe.batch_size}, "
            f"{length_of(recipe, facts)} under {entry.label}, {comm_of(recipe, entry.num_processes, where)}{where}",
        )
        bars = strategy_progress([entry], repeats=1, console=session.console)
        with session.listener(bars) as listener, bars:
            folder = run_folder(session.out, timestamped(f"{recipe.name}-{entry.label}"), pool)
            listener.started(entry, 0)
            result = execute(
                pool, recipe, entry, folder=folder, on_event=lambda e: listener.event(entry, e), restarts=restarts
            )
            if result is not None:
                listener.done(entry, 0, result)
    if result is not None and folder is not None:
        show_run(session.console, result, folder.path)
        write_json({"schema": SCHEMA, "recipe": recipe.to_dict(), "results": [result]}, session.json_target)


def register(app: typer.Typer) -> None:
    app.command()(run)
