from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.parts.options import Json, Out

ORDER = 4


def reproduce(
    experiment: Annotated[str, typer.Argument(help="Which one; without it they are listed.")] = "",
    full: Annotated[bool, typer.Option("--full", help="Run the whole experiment: hours on a few cores.")] = False,
    data_dir: Annotated[str, typer.Option(help="Where CIFAR-10 or MNIST is; else what stands in is said.")] = "",
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda.")] = "cpu",
    cluster: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Emulate nodes where the experiment has some.")
    ] = True,
    repeats: Annotated[int | None, typer.Option(help="Times that every row runs, instead of its own.", min=1)] = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML page beside the results.")] = True,
    out: Out = Path("runs"),
    json_target: Json = "",
) -> None:
    """Run a published experiment here, and show its figures beside ours."""
    from paceline.cli.parts.ending import tell_where
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.progress import Bars
    from paceline.cli.parts.reproduced import show_experiments, show_reproduced
    from paceline.cli.parts.session import launched, launcher_for
    from paceline.launch.base import Request
    from paceline.recipe import ClusterConfig
    from paceline.study.reproduce import load_experiment, prepare
    from paceline.study.reproduce import reproduce as run_study

    console = console_for(json_target)
    if not experiment:
        show_experiments(console)
        return
    launcher_for(Request(), ClusterConfig(), only_once="reproduce")
    check_json_target(json_target)
    loaded = load_experiment(experiment)
    plan = prepare(loaded, full=full, data_dir=data_dir, device=device, on_cluster=cluster)
    starter = launcher_for(Request(), plan.recipe.cluster)
    console.print(f"{loaded.name}: {loaded.title}", markup=False)
    for note in plan.notes:
        console.print(note, style="yellow", markup=False)
    with launched(plan.num_processes, starter) as launcher:
        study, folder = run_study(
            plan,
            launcher,
            out=out,
            follow=lambda entries, times, steps: Bars(entries, repeats=times, total_steps=steps, console=console),
            repeats=repeats,
        )
    show_reproduced(console, study)
    tell_where(console, folder, with_page=report)
    write_json(study, json_target)


def register(app: typer.Typer) -> None:
    app.command()(reproduce)
