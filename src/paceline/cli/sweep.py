from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.parts.options import Json, MetricsHost, MetricsPort, Out, host_options, recipe_options

ORDER = 3

Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        help="Any recipe key or option and its values; given again, a grid. strategy.OPTION is one of the strategy's. "
        "batch-size=32,128,512; strategy.bucket_mb=1,5,25; cluster.bandwidth=100mbit,1gbit.",
        metavar="KEY=V1,V2,...",
    ),
]
Remedies = Annotated[
    bool,
    typer.Option("--remedies", help="With batch sizes: rows with linear lr and warm-up, with LARS and with LAMB."),
]
OneRemedy = Annotated[
    list[str] | None,
    typer.Option(
        "--remedy", help="One of them, with settings: lars:lr=5:warmup=2. May be given again.", metavar="NAME[:KEY=V]"
    ),
]
Resume = Annotated[
    str, typer.Option("--resume", help="Go on with this sweep; finished points are not run again.", metavar="FOLDER")
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start anew where the same sweep was begun before and is not finished.")
]


@recipe_options(leave_out=("strategies",))
@host_options
def sweep(
    recipe: Any,
    launch: Any,
    vary: Vary = None,
    remedies: Remedies = False,
    remedy: OneRemedy = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Times that every point runs, in turn.", min=1)] = 1,
    resume: Resume = "",
    fresh: Fresh = False,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML page beside the results.")] = True,
    out: Out = Path("runs"),
    json_target: Json = "",
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
) -> None:
    """Train one recipe with some of its keys varied: every value, or every combination, is a run."""
    from paceline.cli.parts.ending import tell_where
    from paceline.cli.parts.metrics import Together, serving
    from paceline.cli.parts.options import check_json_target, console_for, write_json
    from paceline.cli.parts.points import follow_points
    from paceline.cli.parts.sweep_view import show_sweep
    from paceline.cli.parts.sweeping import check_hosts, choose_request, fetch_all, interruptible, introduce, start
    from paceline.study.sweep import open_sweep, run_sweep

    num_hosts = check_hosts(launch, recipe.cluster)
    check_json_target(json_target)
    console = console_for(json_target)
    texts = ["linear", "lars", "lamb"] if remedies else []
    request, stored = choose_request(
        recipe,
        vary or [],
        texts + (remedy or []),
        repeats,
        num_hosts,
        out=out,
        resume=resume,
        is_fresh=fresh,
        console=console,
    )
    fetch_all(request, console)
    with interruptible():
        opened = open_sweep(request, out=out, resume=stored)
        introduce(console, opened)
        with (
            serving(metrics_port, metrics_host, console, is_main=True) as followers,
            follow_points(num_runs=opened.num_runs_left, repeats=request.repeats, console=console) as bars,
        ):
            study = run_sweep(opened, partial(start, launch=launch), Together([bars, *followers]))
    show_sweep(console, study)
    tell_where(console, opened.folder, with_page=report and bool(study["results"]))
    write_json(study, json_target)
    if study["status"] != "done":
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(sweep)
