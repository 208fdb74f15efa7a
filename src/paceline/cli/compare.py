"""The command `compare`: one recipe under several strategies."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.study_session import session_options

ORDER = 1


@recipe_options(leave_out=("strategy",))
@host_options
@session_options()
def compare(
    recipe: Any,
    session: Any,
    repeats: Annotated[int, typer.Option("--repeats", help="Repeats of every strategy, interleaved.", min=1)] = 1,
) -> None:
    """Train one recipe under several strategies and compare them."""
    from paceline.cli.introductions import introduce_compare
    from paceline.study.compare import Compare

    session.refuse_beside_resume(repeats=repeats != 1)
    session.run(
        Compare,
        lambda: Compare.prepare(session.settled(recipe), repeats=repeats),
        asked=recipe,
        introduce=introduce_compare,
        has_bar_per_entry=True,
    )


def register(app: typer.Typer) -> None:
    app.command()(compare)
