"""The command `compare`: train one recipe under several strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.output import comm_of, length_of, model_and_data, processes_of
from paceline.cli.study_session import session_options
from paceline.errors import DivergedError
from paceline.present.numbers import counted
from paceline.present.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.study.compare import Compare

ORDER = 1


@recipe_options(leave_out=("strategy",))
@host_options
@session_options()
def compare(
    recipe: Any,
    session: Any,
    repeats: Annotated[int, typer.Option("--repeats", help="Run all strategies in N rounds.", min=1)] = 1,
) -> None:
    """Train one recipe under several strategies and compare them.

    Settings that are not given as options come from the recipe (`paceline recipes show NAME` prints it).
    """
    from paceline.study.compare import Compare

    session.refuse_with_resume(repeats=repeats != 1)
    outcome = session.run(
        Compare,
        lambda: Compare.prepare(session.prepare_recipe(recipe), repeats=repeats),
        recipe=recipe,
        introduce=_introduce,
        has_bar_per_entry=True,
    )
    if outcome is not None and outcome.result.failed:
        failed, first = outcome.result.failed, outcome.result.failed[0]
        raise DivergedError(
            f"training diverged under {len(failed)} of {len(outcome.result.results) + len(failed)} strategies, the "
            f"others are stored; {first.label}: {first.error}"
        )


def _introduce(console: Console, study: Compare, where: str) -> None:
    recipe, facts = study.recipe, study.facts
    say(
        console,
        f"{model_and_data(recipe, facts)}, global batch {recipe.batch_size}, {length_of(recipe, facts)}, "
        f"{counted(recipe.workers, 'worker')}, {comm_of(recipe, study.num_processes, where)}{where}",
    )
    for entry in study.entries:
        if entry.num_servers:
            say(console, f"{entry.label}: {processes_of(entry)}")


def register(app: typer.Typer) -> None:
    app.command()(compare)
