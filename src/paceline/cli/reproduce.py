"""The command `reproduce`: run published experiments."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.study_session import session_options

ORDER = 4


@session_options(leave_out=("metrics_port", "metrics_host"), takes_hosts=False)
def reproduce(
    session: Any,
    experiment: Annotated[str, typer.Argument(help="Name of the experiment; lists all where omitted.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Run the whole experiment: hours on a few cores.")] = False,
    data_dir: Annotated[
        str, typer.Option(help="Folder of CIFAR-10 or MNIST; otherwise substitute data is used and noted.")
    ] = "",
    device: Annotated[str, typer.Option(help="Device: cpu or cuda.")] = "cpu",
    cluster: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Emulate nodes where the experiment has some.")
    ] = True,
    repeats: Annotated[
        int | None, typer.Option(help="Repeats of every row (default: the experiment's).", min=1)
    ] = None,
) -> None:
    """Run a published experiment and show the published figures beside the measured ones."""
    from paceline.cli.introductions import introduce_reproduce
    from paceline.present.model import plain_table
    from paceline.present.terminal import say, show_tables
    from paceline.study.reproduce import Reproduce, experiment_names

    if not experiment and not session.resume:
        show_tables(session.console, [plain_table(("experiment", "what it is"), list(experiment_names().items()))])
        say(session.console, "`paceline reproduce NAME` runs one; --full runs all of it.")
        return
    session.launcher(only_once="reproduce")
    given = {"full": full, "data_dir": bool(data_dir), "device": device != "cpu", "no_cluster": not cluster}
    session.refuse_beside_resume(**given, repeats=repeats is not None)
    session.run(
        Reproduce,
        lambda: Reproduce.prepare(
            experiment, full=full, data_dir=data_dir, device=device, on_cluster=cluster, repeats=repeats
        ),
        introduce=introduce_reproduce,
        has_bar_per_entry=True,
    )


def register(app: typer.Typer) -> None:
    app.command()(reproduce)
