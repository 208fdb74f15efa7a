"""The command `bench`: time collectives on every comm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli.options import Cluster, Json, host_options

ORDER = 4
WORKERS = 4

HELP = """Measure collectives on every comm side by side, as nccl-tests counts them.

The time of an iteration is that of its slowest worker. Workers fill their inputs and synchronise before each iteration, which is not timed. Every round measures each comm once, and a memory copy of the same size on all workers at once.

algbw = bytes / time (p50). busbw = algbw x 2(n-1)/n for all_reduce, ring and gather-scatter, x (n-1)/n for reduce_scatter and all_gather (bytes: of the whole tensor), x 1 for broadcast. % copy = busbw / (bytes per second that each worker copies)."""  # noqa: E501


@host_options
def bench(
    launch: Any,
    op: Annotated[
        str,
        typer.Option(
            "--op",
            help="all_reduce, reduce_scatter, all_gather, broadcast, gather-scatter, ring; a list, or all.",
        ),
    ] = "all_reduce",
    comm: Annotated[
        str | None, typer.Option("--comm", help="Comms, separated by commas (default: all available).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", help=f"Number of workers (default: {WORKERS}, or those of torchrun).", show_default=False
        ),
    ] = None,
    min_bytes: Annotated[str, typer.Option("--min-bytes", help="Smallest size: 4096, 4K, 37M, 1G.")] = "4K",
    max_bytes: Annotated[str, typer.Option("--max-bytes", help="Largest size.")] = "64M",
    factor: Annotated[int, typer.Option("--factor", help="Factor from one size to the next.")] = 4,
    sizes: Annotated[
        str | None, typer.Option("--bytes", help="These sizes instead, separated by commas: 4K,4M,37M.")
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", help="Warm-up rounds, not counted.")] = 5,
    iterations: Annotated[int, typer.Option("--iterations", help="Measured rounds.")] = 20,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Check results of every operation at every size.")
    ] = True,
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, float64, float16, bfloat16, int32 or int64.")
    ] = "float32",
    threads: Annotated[int, typer.Option("--threads", help="Threads per worker.")] = 1,
    plot: Annotated[
        str, typer.Option("--plot", help="Write a page with busbw over bytes, per comm.", metavar="FILE.html")
    ] = "",
    cluster_text: Cluster = None,
    json_target: Json = "",
) -> None:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from paceline.cli.options import check_json_target, check_page_target, console_for, settle_workers, write_json
    from paceline.cli.study_session import launched, launcher_for
    from paceline.errors import RunError
    from paceline.parsing import words_in
    from paceline.present.numbers import counted
    from paceline.present.studies.bench import bench_page
    from paceline.present.terminal import show
    from paceline.recipe import cluster_of
    from paceline.study.bench import BenchRequest, find_comms, find_ops, parse_bytes, sizes_between
    from paceline.study.bench import bench as measure

    check_json_target(json_target)
    check_page_target(plot)
    settled = settle_workers(workers)
    num_workers = WORKERS if settled is None else settled
    cluster = cluster_of(cluster_text)
    starter = launcher_for(launch, cluster)
    num_nodes = max(starter.describe().num_hosts, cluster.nodes)
    usable, missing = find_comms(comm, num_nodes, num_workers=num_workers)
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
    with launched(plan.workers, starter) as launcher:
        console = console_for(json_target, is_main=launcher.is_main)
        who = counted(plan.workers, "worker")
        rounds = f"{plan.iterations} iterations after {plan.warmup} of warm-up"
        console.print(f"{who}, comms {', '.join(plan.comms)}; {plan.dtype}, {rounds}", markup=False)
        for name, reason in missing.items():
            console.print(f"unavailable: comm {name}, {reason}", markup=False)
        # Few refreshes: a bar that is drawn takes time from the workers.
        with Progress(*columns, console=console, refresh_per_second=2, transient=True) as progress:
            bar = progress.add_task("starting", total=plan.num_rounds)
            outcome = measure(
                plan,
                launcher,
                missing=missing,
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
