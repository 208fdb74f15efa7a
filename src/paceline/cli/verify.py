"""The command `verify`: check that strategies meet their guarantee."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from paceline.cli.options import Cluster, Json, Verbose, host_options
from paceline.limits import DEFAULT_TIMEOUT_S

ORDER = 3


@host_options
def verify(
    launch: Any,
    strategies: Annotated[
        str | None, typer.Option("--strategies", help="Strategies, separated by commas (default: all).")
    ] = None,
    workers: Annotated[str, typer.Option("--workers", help="Numbers of workers, separated by commas.")] = "1,2,3,4",
    models: Annotated[str, typer.Option("--models", help="Models, separated by commas.")] = "lenet5,vgg11",
    comm: Annotated[str, typer.Option("--comm", help="Communication backend, or auto to choose one.")] = "torch",
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for another worker before it fails.", min=1)
    ] = DEFAULT_TIMEOUT_S,
    verbose: Verbose = False,
    cluster_text: Cluster = None,
    json_target: Json = "",
) -> None:
    """Check that every strategy meets its guarantee, by comparison with training in one process in float64."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from paceline.cli.output import check_json_target, console_for, print_limits, write_json
    from paceline.cli.study_session import launcher_for, start_workers
    from paceline.comm.worker_placement import AUTO, choose_comm
    from paceline.errors import RunError, UsageError
    from paceline.parsing import words_in
    from paceline.present.studies.verify import broken_words, verify_page
    from paceline.present.terminal import show
    from paceline.recipe import cluster_of
    from paceline.results.commands import Certificate
    from paceline.results.study import SCHEMA
    from paceline.study.verify import cases, num_processes, unsupported_strategies
    from paceline.study.verify import verify as run_cases

    check_json_target(json_target)
    try:
        sizes = [int(word) for word in workers.split(",")]
    except ValueError:
        raise UsageError(f"--workers {workers!r} is not a list of whole numbers such as 1,2,3,4") from None
    if min(sizes) < 1:
        raise UsageError(f"--workers {workers!r}: every number must be 1 or more")
    names = list(words_in(strategies or ""))
    if strategies is not None and not names:
        raise UsageError("--strategies is empty; leave it out to verify all")
    cluster = cluster_of(cluster_text)
    launcher = launcher_for(launch, cluster, single_process="verify")
    num_nodes = max(cluster.nodes, launcher.describe().num_hosts)
    if comm == AUTO:
        comm = choose_comm(num_workers=max(sizes), num_nodes=num_nodes)
    planned = cases(names, sizes, models.split(","), comm=comm, num_nodes=num_nodes)
    console = console_for(json_target)
    if verbose:
        print_limits(console, timeout_s)
    for name, reason in ({} if names else unsupported_strategies(comm)).items():
        console.print(f"{name} is not verified on comm {comm}: {reason}", markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        start_workers(num_processes(planned), launcher) as pool,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task("verifying", total=len(planned))
        rows = run_cases(planned, pool, comm=comm, timeout_s=timeout_s, on_case=lambda row: progress.advance(bar))  # noqa: ARG005
    certificate = Certificate(schema=SCHEMA, results=rows)
    show(console, verify_page(certificate, comm))
    write_json(certificate, json_target)
    broken = [row for row in rows if not row.meets_guarantee]
    if broken:
        raise RunError(f"{len(broken)} of {len(rows)} do not meet their guarantee; first: {broken_words(broken[0])}")


def register(app: typer.Typer) -> None:
    app.command()(verify)
