"""The command `sweep`: one recipe with some keys varied."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.study_session import session_options

ORDER = 3

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        help="A recipe key or option and its values; repeat it for a grid. strategy.OPTION is the strategy's option. "
        "batch-size=32,128,512; strategy.bucket_mb=1,5,25; cluster.bandwidth=100mbit,1gbit.",
        metavar="KEY=V1,V2,...",
    ),
]
Remedies = Annotated[
    bool,
    typer.Option(
        "--remedies",
        help="With batch sizes: add rows with linear lr and warm-up, with LARS and with LAMB.",
    ),
]
OneRemedy = Annotated[
    list[str] | None,
    typer.Option(
        "--remedy", help="Add one remedy, with settings: lars:lr=5:warmup=2. Repeatable.", metavar="NAME[:KEY=V]"
    ),
]


@recipe_options(leave_out=("strategies",))
@host_options
@session_options()
def sweep(
    recipe: Any,
    session: Any,
    vary: Vary = None,
    remedies: Remedies = False,
    remedy: OneRemedy = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Repeats of every point, interleaved.", min=1)] = 1,
) -> None:
    """Train one recipe with some of its keys varied: every value, or every combination, is a run."""
    from paceline.cli.introductions import introduce_sweep
    from paceline.results import DONE
    from paceline.study.sweep import Sweep, make_points
    from paceline.study.sweep_axes import parse_remedies, parse_vary

    session.launcher(only_once="sweep")
    names = [*(["linear", "lars", "lamb"] if remedies else []), *(remedy or [])]
    session.refuse_beside_resume(vary=bool(vary), remedies=remedies, remedy=bool(remedy), repeats=repeats != 1)
    axes, chosen = parse_vary(vary or []), parse_remedies(names)

    def prepare() -> Sweep:
        points = make_points(recipe, axes, chosen, num_hosts=session.num_hosts)
        for data in dict.fromkeys(point.recipe.data for point in points if point.entry is not None):
            session.fetch(data)
        return Sweep.prepare(recipe, axes, chosen, repeats=repeats, num_hosts=session.num_hosts)

    outcome = session.run(Sweep, prepare, asked=recipe, introduce=introduce_sweep)
    if outcome is not None and outcome.result.status != DONE:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(sweep)
