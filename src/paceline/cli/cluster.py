"""The command `cluster`: build, list, measure and remove emulated nodes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from paceline.cli.options import Json

ORDER = 5

cluster = typer.Typer(
    help="Emulated nodes on this machine: build, list, measure and remove them, and run commands in them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Words = Annotated[
    str,
    typer.Argument(
        help="nodes=4,cpus=0.5,bandwidth=1gbit and optionally latency=1ms, loss=0.1%, memory=2g, "
        "links=0-2:100mbit, slow=3:0.5.",
        metavar="KEY=VALUE,...",
    ),
]
WithoutShares = Annotated[
    bool, typer.Option("--without-cpu-shares", help="Ignore cpus and slow, for hosts that do not allow them.")
]
Name = Annotated[str, typer.Argument(help="The cluster's name, as `list` shows it.", metavar="NAME")]


@cluster.command()
def up(
    words: Words,
    name: Annotated[str, typer.Option("--name", help="1 to 8 lowercase letters and digits (default: random).")] = "",
    without_cpu_shares: WithoutShares = False,
) -> None:
    """Build a cluster that stays until `down`."""
    from paceline.cli.options import console_for
    from paceline.cluster import keep_cluster
    from paceline.present.studies.cluster import more_than_there_is
    from paceline.recipe import cluster_of

    kept = keep_cluster(cluster_of(words), name=name, without_cpu_shares=without_cpu_shares)
    console = console_for("")
    addresses = f"{kept.nodes[0].address} to {kept.nodes[-1].address}" if len(kept.nodes) > 1 else kept.nodes[0].address
    console.print(f"Cluster {kept.name} is up: nodes 0 to {len(kept.nodes) - 1}, {addresses}.", markup=False)
    if note := more_than_there_is(kept.layout):
        console.print(note, style="yellow", markup=False)
    console.print(f"paceline cluster exec {kept.name} 0 -- COMMAND runs a command in node 0.", markup=False)


@cluster.command("list")
def list_clusters(json_target: Json = "") -> None:
    """List all clusters: kept ones and those of running commands."""
    from paceline.cli.options import console_for, write_json
    from paceline.cluster.running import describe, living_keepers
    from paceline.present.studies.cluster import cluster_line
    from paceline.results.commands import ClusterList
    from paceline.results.study import SCHEMA

    console = console_for(json_target)
    found = [describe(keeper) for keeper in living_keepers()]
    for one in found:
        console.print(cluster_line(one), markup=False, soft_wrap=True)
    if not found:
        console.print("No clusters: `paceline cluster up nodes=4,bandwidth=1gbit` makes one.", markup=False)
    write_json(ClusterList(schema=SCHEMA, clusters=found), json_target)


@cluster.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    name: Name,
    node: Annotated[int, typer.Argument(help="The node's number.", metavar="NODE")],
    command: Annotated[list[str], typer.Argument(help="Command to run in the node.", metavar="COMMAND...")],
) -> None:
    """Run a command in a node, with its network, CPU share and memory limit."""
    from paceline.cluster.opening import find_cluster
    from paceline.errors import UsageError

    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UsageError("no command was given; add one after --")
    line = find_cluster(name).command(node, words)
    sys.stdout.flush()
    try:
        os.execvp(line[0], line)
    except OSError as error:
        raise UsageError(f"{line[0]} cannot be run: {error.strerror}") from None


@cluster.command()
def down(
    names: Annotated[list[str] | None, typer.Argument(help="Names, as `list` shows them.", metavar="[NAME]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All kept clusters.")] = False,
) -> None:
    """Remove kept clusters and end all processes in them."""
    from paceline.cli.options import console_for
    from paceline.cluster.running import living_keepers, take_down
    from paceline.errors import UsageError

    if bool(names) == everything:
        raise UsageError("give either names of clusters or --all")
    console = console_for("")
    for name in names or [keeper.layout.name for keeper in living_keepers() if not keeper.layout.parent]:
        take_down(name)
        console.print(f"Cluster {name} is down.", markup=False)


@cluster.command()
def prune() -> None:
    """Remove leftovers of clusters whose keeper process was killed."""
    from paceline.cli.options import console_for
    from paceline.cluster.running import prune as remove_leftovers

    console = console_for("")
    removed = remove_leftovers()
    for one in removed:
        console.print(
            f"Cluster {one.name}: {one.num_processes} processes ended, {len(one.cgroups)} cgroups removed.",
            markup=False,
        )
    if not removed:
        console.print("Nothing is left over.")


@cluster.command()
def check(
    which: Annotated[
        str,
        typer.Argument(
            help="A kept cluster's name, or a cluster to build for the check.", metavar="NAME|KEY=VALUE,..."
        ),
    ],
    seconds: Annotated[float, typer.Option("--seconds", help="Seconds per measurement.", min=0.1)] = 1.0,
    without_cpu_shares: WithoutShares = False,
    json_target: Json = "",
) -> None:
    """Measure bandwidth, latency and CPU shares inside a cluster, and compare them with the request."""
    from paceline.cli.options import check_json_target, console_for, write_json
    from paceline.cluster.check import TOLERANCE, check_cluster
    from paceline.cluster.opening import find_or_build
    from paceline.errors import RunError
    from paceline.present.studies.cluster import busy_machine, figure_line, missed, more_than_there_is
    from paceline.results.commands import ClusterCheck
    from paceline.results.study import SCHEMA

    check_json_target(json_target)
    console = console_for(json_target)
    figures = []
    with find_or_build(which, without_cpu_shares=without_cpu_shares) as built:
        console.print(f"Cluster {built.name}: {built.layout.asked}", markup=False)
        for note in filter(None, (more_than_there_is(built.layout), busy_machine())):
            console.print(note, style="yellow", markup=False)
        for figure in check_cluster(built, seconds=seconds):
            figures.append(figure)
            console.print(figure_line(figure), markup=False)
        name, asked = built.name, built.layout.asked
    wrong = [figure for figure in figures if not figure.is_met]
    write_json(ClusterCheck(schema=SCHEMA, name=name, asked=asked, passed=not wrong, figures=figures), json_target)
    if wrong:
        raise RunError(
            f"{len(wrong)} of {len(figures)} figures are not as asked for (within {TOLERANCE:.0%}): {missed(wrong)}"
        )


def register(app: typer.Typer) -> None:
    app.add_typer(cluster, name="cluster")
