"""The command `run`: one recipe under one strategy."""

from __future__ import annotations

from typing import Any

import typer

from paceline.cli.options import host_options, recipe_options, write_json
from paceline.cli.study_session import session_options

ORDER = 2


@recipe_options(leave_out=("strategies",))
@host_options
@session_options(leave_out=("resume", "fresh", "report"))
def run(recipe: Any, session: Any) -> None:
    """Train one recipe under one strategy and report on every worker."""
    from paceline.cli.console import show_run_outcome
    from paceline.cli.introductions import introduce_run
    from paceline.cli.progress import StrategyBars
    from paceline.cli.study_session import launched
    from paceline.results import SCHEMA
    from paceline.runs import timestamped
    from paceline.study.entries import make_entry
    from paceline.study.preflight import preflight
    from paceline.study.run import execute, run_folder

    recipe = session.settled(recipe)
    entry = make_entry(recipe.strategy, recipe)
    facts = preflight(recipe, [entry])
    with launched(entry.num_processes, session.launcher(recipe.cluster)) as launcher:
        introduce_run(session.console, recipe, entry, facts, session.where(recipe.cluster))
        bars = StrategyBars([entry], repeats=1, console=session.console)
        with session.followed(bars) as listener, bars:
            folder = run_folder(session.out, timestamped(f"{recipe.name}-{entry.label}"), launcher)
            listener.started(entry, 0)
            result = execute(launcher, recipe, entry, folder=folder, on_event=lambda e: listener.event(entry, e))
            if result is not None:
                listener.done(entry, 0, result)
    if result is not None and folder is not None:
        show_run_outcome(session.console, result, folder.path)
        write_json({"schema": SCHEMA, "recipe": recipe.to_dict(), "results": [result]}, session.json_target)


def register(app: typer.Typer) -> None:
    app.command()(run)
