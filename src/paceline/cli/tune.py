"""The command `tune`: find the best strategy and options for a recipe."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.study_session import session_options

ORDER = 3

PANEL = "Tuning"


@recipe_options(leave_out=("strategies",))
@host_options
@session_options()
def tune(
    recipe: Any,
    session: Any,
    within: Annotated[
        float,
        typer.Option(
            help="Percentage points of accuracy that may be lost against the exact strategy.",
            rich_help_panel=PANEL,
            min=0,
        ),
    ] = 0.5,
    within_loss: Annotated[
        float,
        typer.Option(
            help="Percent by which test loss may rise against the exact strategy; used where accuracy is "
            "no better than chance.",
            rich_help_panel=PANEL,
            min=0,
        ),
    ] = 2.0,
    strategies: Annotated[
        str, typer.Option(help="Strategies to choose from, separated by commas.", rich_help_panel=PANEL)
    ] = "",
    buckets: Annotated[
        str, typer.Option(help="Bucket sizes in MB (default: fractions of the model's size).", rich_help_panel=PANEL)
    ] = "",
    codecs: Annotated[str, typer.Option(help="Codecs to choose from.", rich_help_panel=PANEL)] = "",
    periods: Annotated[str, typer.Option(help="Steps between two synchronisations.", rich_help_panel=PANEL)] = "",
    eta: Annotated[
        int,
        typer.Option(
            help="Keep one in ETA candidates per rung; the next is ETA times as long.", rich_help_panel=PANEL, min=2
        ),
    ] = 3,
    repeats: Annotated[
        int, typer.Option(help="Repeats of the finalists, each with its own seed.", rich_help_panel=PANEL, min=1)
    ] = 3,
) -> None:
    """Find the fastest strategy, codec, bucket size and synchronisation period within an accuracy margin."""
    from paceline.cli.introductions import introduce_tune, rung_line
    from paceline.parsing import numbers_in, words_in
    from paceline.study.candidates import CODECS, PERIODS, Space, tried_strategies
    from paceline.study.halving import Margins
    from paceline.study.tune import Tune

    session.launcher(only_once="tune")
    session.refuse_beside_resume(
        within=within != 0.5,
        within_loss=within_loss != 2.0,
        strategies=bool(strategies),
        buckets=bool(buckets),
        codecs=bool(codecs),
        periods=bool(periods),
        eta=eta != 3,
        repeats=repeats != 3,
    )
    space = Space(
        strategies=words_in(strategies) or tried_strategies(),
        buckets_mb=numbers_in("--buckets", buckets),
        codecs=words_in(codecs) or CODECS,
        periods=tuple(int(period) for period in numbers_in("--periods", periods, whole=True)) or PERIODS,
    )
    margins = Margins(points=within, loss_percent=within_loss)
    session.run(
        Tune,
        lambda: Tune.prepare(session.settled(recipe), space, margins=margins, eta=eta, repeats=repeats),
        asked=recipe,
        own_keys=("strategies",),
        introduce=introduce_tune,
        on_stage=rung_line,
    )


def register(app: typer.Typer) -> None:
    app.command()(tune)
