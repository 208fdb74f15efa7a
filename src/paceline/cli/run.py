"""The command `run`: train under one strategy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.output import comm_of, length_of, model_and_data, processes_of, show_run, write_json
from paceline.cli.study_session import session_options
from paceline.errors import UsageError
from paceline.present.terminal import say

ORDER = 2

Resume = Annotated[
    str, typer.Option("--resume", help="Continue this unfinished run from its last checkpoint.", metavar="RUN")
]


@recipe_options(leave_out=("strategies",))
@host_options
@session_options(leave_out=("resume", "fresh", "report"))
def run(
    recipe: Any,
    session: Any,
    resume: Resume = "",
    restarts: Annotated[
        int, typer.Option("--restarts", help="Start the workers again up to N times after a worker fails.", min=0)
    ] = 0,
) -> None:
    """Train one recipe under one strategy, and show the time and result of every worker."""
    from paceline.cli.progress import strategy_progress
    from paceline.cli.study_session import start_workers
    from paceline.results import SCHEMA
    from paceline.runs import Folder, timestamped
    from paceline.study.entries import make_entry
    from paceline.study.preflight import preflight
    from paceline.study.resumption import find_resumption
    from paceline.study.run import execute, run_folder

    unfinished = None
    if resume:
        unfinished, recipe = session.read_unfinished_run(resume, recipe)
    elif session.trust:
        raise UsageError("--trust needs --resume: code that you name on the command line is trusted already")
    launcher = session.launcher(recipe.cluster)
    if restarts and not launcher.starts_all:
        raise UsageError(f"--restarts needs one process that starts all workers; leave out {launcher.because}")
    recipe = session.prepare_recipe(recipe)
    entry = make_entry(recipe.strategy, recipe)
    facts = preflight(recipe, [entry])
    resumption = None if unfinished is None else find_resumption(unfinished, entry.recipe(recipe))
    where = session.place_words(recipe.cluster)
    with start_workers(entry.num_processes, launcher) as pool:
        say(
            session.console,
            f"{model_and_data(recipe, facts)}, {processes_of(entry)}, global batch {recipe.batch_size}, "
            f"{length_of(recipe, facts)} under {entry.label}, {comm_of(recipe, entry.num_processes, where)}{where}",
        )
        if resumption is not None:
            begin = f"after step {resumption.step}" if resumption.step else "from the start: there is no checkpoint"
            say(session.console, f"Resuming {unfinished} {begin}.")
        bars = strategy_progress([entry], repeats=1, console=session.console)
        with session.listener(bars) as listener, bars:
            if unfinished is not None:
                folder: Any = Folder.reopen(unfinished)
            else:
                folder = run_folder(session.out, timestamped(f"{recipe.name}-{entry.label}"), pool)
            listener.started(entry, 0)
            result = execute(
                pool,
                recipe,
                entry,
                folder=folder,
                on_event=lambda e: listener.event(entry, e),
                resume=resumption,
                restarts=restarts,
            )
            if result is not None:
                listener.done(entry, 0, result)
    if result is not None and folder is not None:
        show_run(session.console, result, folder.path)
        write_json({"schema": SCHEMA, "recipe": recipe.to_dict(), "results": [result]}, session.json_target)


def register(app: typer.Typer) -> None:
    app.command()(run)
