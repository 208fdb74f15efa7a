"""The command `tune`: find the best strategy and options for a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import host_options, recipe_options
from paceline.cli.output import comm_of, model_and_data
from paceline.cli.study_session import session_options
from paceline.present.numbers import counted
from paceline.present.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.results.study import TuneResult
    from paceline.study.tune import Tune

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
            help="Allowed drop of test accuracy below exact training, in percentage points.",
            rich_help_panel=PANEL,
            min=0,
        ),
    ] = 0.5,
    within_loss: Annotated[
        float,
        typer.Option(
            help="Allowed rise of the test loss above exact training, in percent; used instead of --within where "
            "the accuracy is no better than chance.",
            rich_help_panel=PANEL,
            min=0,
        ),
    ] = 2.0,
    strategies: Annotated[
        str,
        typer.Option(
            help="Strategies to try, separated by commas (default: all that can be tuned).", rich_help_panel=PANEL
        ),
    ] = "",
    buckets: Annotated[
        str,
        typer.Option(
            help="Bucket sizes to try, in MB (default: fractions of the model's size).", rich_help_panel=PANEL
        ),
    ] = "",
    codecs: Annotated[
        str,
        typer.Option(
            help="Codecs to try, separated by commas (default: fp32, bf16, int8 and powersgd).", rich_help_panel=PANEL
        ),
    ] = "",
    periods: Annotated[
        str,
        typer.Option(help="Synchronisation periods to try, in steps (default: 4,16).", rich_help_panel=PANEL),
    ] = "",
    eta: Annotated[
        int,
        typer.Option(
            help="Successive halving: each rung keeps one in ETA candidates and runs ETA times as many steps.",
            rich_help_panel=PANEL,
            min=2,
        ),
    ] = 3,
    repeats: Annotated[
        int,
        typer.Option(
            help="Run the candidates of the last rung N times, each time with another seed.",
            rich_help_panel=PANEL,
            min=1,
        ),
    ] = 3,
) -> None:
    """Find the fastest strategy, codec, bucket size and synchronisation period within an accuracy margin."""
    from paceline.parsing import numbers_in, words_in
    from paceline.study.candidates import CODECS, PERIODS, Space, tried_strategies
    from paceline.study.halving import Margins
    from paceline.study.tune import Tune

    session.launcher(single_process="tune")
    session.refuse_with_resume(
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
        lambda: Tune.prepare(session.prepare_recipe(recipe), space, margins=margins, eta=eta, repeats=repeats),
        recipe=recipe,
        own_keys=("strategies",),
        introduce=_introduce,
        on_stage=_last_rung,
    )


def _introduce(console: Console, study: Tune, where: str) -> None:
    recipe, left_out = study.recipe, study.candidates.left_out
    say(
        console,
        f"{model_and_data(recipe, study.facts)}, global batch {recipe.batch_size}, "
        f"{counted(recipe.workers, 'worker')}, {comm_of(recipe, study.num_processes, where)}{where}",
    )
    steps = ", ".join(f"{rung.steps} steps x {rung.repeats}" for rung in study.rungs)
    rule = (
        f"within {study.margins.points:g} points of {study.candidates.reference.label} after the same number of samples"
    )
    say(console, f"{len(study.candidates.entries)} candidates, rungs of {steps}; {rule}")
    for reason in dict.fromkeys(left_out.values()):
        labels = ", ".join(label for label in left_out if left_out[label] == reason)
        say(console, f"left out: {labels}: {reason}", "dim")


def _last_rung(result: TuneResult) -> str:
    from paceline.present.studies.tune import rung_words

    return rung_words(result.rungs[-1]) if result.rungs else ""


def register(app: typer.Typer) -> None:
    app.command()(tune)
