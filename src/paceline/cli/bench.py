"""The command `bench`: time collectives on every comm (communication backend)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import Cluster, Json, host_options

ORDER = 4
WORKERS = 4

HELP = """Measure the bandwidth of collectives on every comm, and print algbw and busbw as nccl-tests does.

Comms are communication backends. Every round times each comm once, and then a memory copy of the same size on all workers simultaneously. The time of a comm is that of its slowest worker. Before it is timed, workers fill their inputs and wait for each other.

algbw = bytes of the whole tensor / median time. busbw = algbw x f, where f is 2(n-1)/n for all_reduce, ring and gather-scatter, (n-1)/n for reduce_scatter and all_gather, and 1 for broadcast. % copy = busbw / (bytes per second that each worker copies in memory)."""  # noqa: E501


@host_options
def bench(
    launch: Any,
    op: Annotated[
        str,
        typer.Option(
            "--op",
            help="Operations, separated by commas, or all: all_reduce, reduce_scatter, all_gather, broadcast, "
            "gather-scatter, ring.",
        ),
    ] = "all_reduce",
    comm: Annotated[
        str | None,
        typer.Option("--comm", help="Communication backends, separated by commas (default: all that work here)."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            help=f"Number of workers (default: {WORKERS}, or all that torchrun started).",
            show_default=False,
        ),
    ] = None,
    min_bytes: Annotated[str, typer.Option("--min-bytes", help="Smallest tensor: 4096, 4K, 37M, 1G.")] = "4K",
    max_bytes: Annotated[str, typer.Option("--max-bytes", help="Largest tensor.")] = "64M",
    factor: Annotated[int, typer.Option("--factor", help="Factor from one size to the next.")] = 4,
    sizes: Annotated[
        str | None, typer.Option("--bytes", help="Tensor sizes, instead of --min-bytes to --max-bytes: 4K,4M,37M.")
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", help="Number of warm-up rounds, which are not timed.")] = 5,
    iterations: Annotated[int, typer.Option("--iterations", help="Number of timed rounds.")] = 20,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check the result of every operation at every size.")
    ] = True,
    dtype: Annotated[
        str, typer.Option("--dtype", help="Element type: float32, float64, float16, bfloat16, int32 or int64.")
    ] = "float32",
    threads: Annotated[int, typer.Option("--threads", help="Threads of each worker.")] = 1,
    plot: Annotated[
        str,
        typer.Option(
            "--plot", help="Write an HTML page with a plot of busbw over bytes for each comm.", metavar="FILE.html"
        ),
    ] = "",
    cluster_text: Cluster = None,
    json_target: Json = "",
) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from paceline.cli.options import torchrun_workers
    from paceline.cli.output import check_json_target, check_target, console_for, write_json
    from paceline.cli.study_session import launcher_for, start_workers
    from paceline.errors import RunError
    from paceline.parsing import words_in
    from paceline.present.numbers import counted
    from paceline.present.studies.bench import bench_page
    from paceline.present.terminal import show
    from paceline.recipe import cluster_of
    from paceline.study.bench import BenchRequest, find_comms, find_ops, parse_bytes, sizes_between
    from paceline.study.bench import bench as measure

    check_json_target(json_target)
    check_target("--plot", plot, endings=(".html", ".htm"))
    requested = torchrun_workers(workers)
    num_workers = WORKERS if requested is None else requested
    cluster = cluster_of(cluster_text)
    launcher = launcher_for(launch, cluster)
    num_nodes = max(launcher.describe().num_hosts, cluster.nodes)
    usable, unavailable = find_comms(comm, num_nodes, num_workers=num_workers)
    plan = BenchRequest(
        ops=find_ops(op),
        comms=usable,
        sizes=tuple(map(parse_bytes, words_in(sizes)))
        if sizes is not None
        else sizes_between(parse_bytes(min_bytes), parse_bytes(max_bytes), factor),
        dtype=dtype,
        workers=num_workers,
        warmup=warmup,
        iterations=iterations,
        check=check,
        threads=threads,
        num_nodes=num_nodes,
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with start_workers(plan.workers, launcher) as pool:
        console = console_for(json_target, is_main=pool.is_main)
        rounds = f"{plan.iterations} iterations after {plan.warmup} of warm-up"
        workers_text = counted(plan.workers, "worker")
        console.print(f"{workers_text}, comms {', '.join(plan.comms)}; {plan.dtype}, {rounds}", markup=False)
        for name, reason in unavailable.items():
            console.print(f"unavailable: comm {name}, {reason}", markup=False)
        # Refresh the bar rarely, because drawing takes processor time from the workers.
        with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
            bar = progress.add_task("starting", total=plan.num_rounds)
            outcome = measure(
                plan,
                pool,
                missing=unavailable,
                on_progress=lambda rounds, doing: progress.update(bar, completed=rounds, description=doing),
            )
    if outcome is None:
        return
    page = bench_page(outcome)
    show(console, page)
    if plot:
        from paceline.present.html import write_page

        console.print(f"plot  {write_page(page, Path(plot))}", markup=False, soft_wrap=True)
    write_json(outcome, json_target)
    wrong = [row for row in outcome.results if row.correct is False]
    if wrong:
        first = wrong[0]
        raise RunError(
            f"{len(wrong)} of {len(outcome.results)} results are wrong; first: {first.op} of {first.bytes} bytes on "
            f"comm {first.comm} ({first.result}), on workers {', '.join(map(str, first.wrong_workers))}"
        )


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(bench)
