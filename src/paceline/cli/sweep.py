"""The command `sweep`: train one recipe with several values of some keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.study_session import session_options
from paceline.present.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.study.sweep import Sweep

ORDER = 3

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        help="An option or recipe key and its values: batch-size=32,128, strategy.bucket_mb=1,5,25 (an option of the "
        "strategy) or cluster.cpus=0.5,1. Several --vary form a grid.",
        metavar="KEY=V1,V2,...",
    ),
]
Remedies = Annotated[
    bool,
    typer.Option(
        "--remedies",
        help="When batch sizes vary, also train with methods for large batches: linear (scaled learning rate with "
        "warm-up), lars and lamb.",
    ),
]
OneRemedy = Annotated[
    list[str] | None,
    typer.Option(
        "--remedy",
        help="Also train with this remedy and its settings: lars:lr=5:warmup=2. Repeatable.",
        metavar="NAME[:KEY=V]",
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
    repeats: Annotated[int, typer.Option("--repeats", help="Run all combinations in N rounds.", min=1)] = 1,
) -> None:
    """Train one recipe with several values of some keys, in every combination."""
    from paceline.results import DONE
    from paceline.study.sweep import Sweep, make_points
    from paceline.study.sweep_axes import parse_remedies, parse_vary

    session.launcher(single_process="sweep")
    names = [*(["linear", "lars", "lamb"] if remedies else []), *(remedy or [])]
    session.refuse_with_resume(vary=bool(vary), remedies=remedies, remedy=bool(remedy), repeats=repeats != 1)
    axes, chosen = parse_vary(vary or []), parse_remedies(names)

    def prepare() -> Sweep:
        session.print_limits(recipe)
        points = make_points(recipe, axes, chosen, num_hosts=session.num_hosts)
        for data in dict.fromkeys(point.recipe.data for point in points if point.entry is not None):
            session.fetch(data)
        return Sweep.prepare(recipe, axes, chosen, repeats=repeats, num_hosts=session.num_hosts)

    outcome = session.run(Sweep, prepare, recipe=recipe, introduce=_introduce)
    if outcome is not None and outcome.result.status != DONE:
        raise typer.Exit(1)


def _introduce(console: Console, study: Sweep, where: str) -> None:
    """Print the varied keys, the number of combinations of their values, and the predicted memory."""
    from paceline.study.memory_prediction import amount, footprint_key, predict

    recipe = study.recipe
    axes = ", ".join(f"{axis.key} ({len(axis.values)} values)" for axis in study.axes)
    say(
        console,
        f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {recipe.workers} workers{where}, "
        f"{len(study.points)} points over {axes}, {len(study.points) * study.repeats} runs",
    )
    for reason in study.not_predicted:
        say(console, reason, "yellow")
    needs = [
        predict(study.footprints[footprint_key(point.recipe)], point.recipe, point.entry).total_bytes
        for point in study.points
        if point.entry is not None and footprint_key(point.recipe) in study.footprints
    ]
    if needs:
        span = amount(max(needs)) if min(needs) == max(needs) else f"{amount(min(needs))} to {amount(max(needs))}"
        say(console, f"predicted memory of all workers together: {span}")


def register(app: typer.Typer) -> None:
    app.command()(sweep)
