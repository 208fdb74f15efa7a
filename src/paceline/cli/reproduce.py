"""The command `reproduce`: repeat a published experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.study_session import session_options
from paceline.present.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.study.reproduce import Reproduce

ORDER = 4


@session_options(leave_out=("metrics_port", "metrics_host", "verbose"), takes_hosts=False)
def reproduce(
    session: Any,
    experiment: Annotated[str, typer.Argument(help="Name of the experiment; without a name, list all.")] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Run the whole experiment, which takes hours on a few cores.")
    ] = False,
    data_dir: Annotated[
        str,
        typer.Option(help="Folder of CIFAR-10 or MNIST; without it, substitute data is used and the result says so."),
    ] = "",
    device: Annotated[str, typer.Option(help="Device of the workers: cpu or cuda.")] = "cpu",
    cluster: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Emulate nodes for experiments that ran on several nodes.")
    ] = True,
    repeats: Annotated[
        int | None, typer.Option(help="Run every row N times, in turn (default: depends on the experiment).", min=1)
    ] = None,
) -> None:
    """Repeat a published experiment, and show the published numbers next to the measured ones."""
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import show_tables
    from paceline.study.reproduce import Reproduce, experiment_names

    if not experiment and not session.resume:
        show_tables(session.console, [plain_table(("experiment", "description"), list(experiment_names().items()))])
        say(session.console, "`paceline reproduce NAME` runs one; --full runs all of it.")
        return
    session.launcher(single_process="reproduce")
    session.refuse_with_resume(
        full=full,
        data_dir=bool(data_dir),
        device=device != "cpu",
        no_cluster=not cluster,
        repeats=repeats is not None,
    )
    session.run(
        Reproduce,
        lambda: Reproduce.prepare(
            experiment, full=full, data_dir=data_dir, device=device, on_cluster=cluster, repeats=repeats
        ),
        introduce=_introduce,
        has_bar_per_entry=True,
    )


def _introduce(console: Console, study: Reproduce, where: str) -> None:
    del where  # the notes say where the workers run
    say(console, f"{study.plan.experiment.name}: {study.plan.experiment.title}")
    for note in study.plan.notes:
        say(console, note, "yellow")


def register(app: typer.Typer) -> None:
    app.command()(reproduce)
