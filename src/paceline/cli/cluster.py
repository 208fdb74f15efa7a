"""The command `cluster`: build, list, measure and remove clusters of emulated nodes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import CLUSTER_KEYS, Json

if TYPE_CHECKING:
    from paceline.cluster.layout import ClusterLayout
    from paceline.results.commands import ClusterFigure, ListedCluster

ORDER = 5

cluster = typer.Typer(
    help="Emulate the nodes of a cluster on this machine: build, list, measure and remove them, run commands in them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

ClusterText = Annotated[
    str,
    typer.Argument(
        help=CLUSTER_KEYS,
        metavar="KEY=VALUE,...",
    ),
]
WithoutShares = Annotated[
    bool,
    typer.Option("--without-cpu-shares", help="Ignore cpus and slow, on machines where you may not limit CPU shares."),
]
Name = Annotated[str, typer.Argument(help="Name of the cluster, as printed by `list`.", metavar="NAME")]


@cluster.command()
def up(
    cluster_text: ClusterText,
    name: Annotated[
        str, typer.Option("--name", help="Name of 1 to 8 lowercase letters and digits (default: random).")
    ] = "",
    without_cpu_shares: WithoutShares = False,
) -> None:
    """Build a cluster that stays until `paceline cluster down`."""
    from paceline.cli.output import console_for
    from paceline.cluster import keep_cluster
    from paceline.recipe import cluster_of

    built = keep_cluster(cluster_of(cluster_text), name=name, without_cpu_shares=without_cpu_shares)
    console = console_for("")
    addresses = _address_range([node.address for node in built.nodes])
    console.print(f"Cluster {built.name} is up: nodes 0 to {len(built.nodes) - 1}, {addresses}.", markup=False)
    if warning := overcommit_warning(built.layout):
        console.print(warning, style="yellow", markup=False)
    console.print(f"paceline cluster exec {built.name} 0 -- COMMAND runs a command in node 0.", markup=False)


@cluster.command("list")
def list_clusters(json_target: Json = "") -> None:
    """List all clusters: those built by `up`, and those of running commands."""
    from paceline.cli.output import console_for, write_json
    from paceline.cluster.running import describe, living_keepers
    from paceline.results.commands import ClusterList
    from paceline.results.study import SCHEMA

    console = console_for(json_target)
    clusters = [describe(keeper) for keeper in living_keepers()]
    for listed in clusters:
        console.print(_cluster_line(listed), markup=False, soft_wrap=True)
    if not clusters:
        console.print("No clusters: `paceline cluster up nodes=4,bandwidth=1gbit` builds one.", markup=False)
    write_json(ClusterList(schema=SCHEMA, clusters=clusters), json_target)


@cluster.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    name: Name,
    node: Annotated[int, typer.Argument(help="Number of the node, from 0.", metavar="NODE")],
    command: Annotated[list[str], typer.Argument(help="Command to run in the node.", metavar="COMMAND...")],
) -> None:
    """Run a command in a node, with the network, the CPU share and the memory limit of the node."""
    from paceline.cluster.opening import find_cluster
    from paceline.errors import UsageError

    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UsageError("no command was given; add one after the node, such as `-- ip addr`")
    line = find_cluster(name).command(node, words)
    sys.stdout.flush()
    try:
        os.execvp(line[0], line)
    except OSError as error:
        raise UsageError(f"{line[0]} cannot be run: {error.strerror}") from None


@cluster.command()
def down(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of clusters, as printed by `list`.", metavar="[NAME]...")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all clusters built by `up`.")] = False,
) -> None:
    """Remove clusters built by `up`, and end all processes in them."""
    from paceline.cli.output import console_for
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
    """Remove the remains of clusters whose managing process was killed."""
    from paceline.cli.output import console_for
    from paceline.cluster.running import prune as remove_leftovers

    console = console_for("")
    removed = remove_leftovers()
    for cluster in removed:
        ended = f"{cluster.num_processes} processes ended, {len(cluster.cgroups)} cgroups removed"
        console.print(f"Cluster {cluster.name}: {ended}.", markup=False)
    if not removed:
        console.print("Nothing is left over.")


@cluster.command()
def check(
    which: Annotated[
        str,
        typer.Argument(help="Name of a cluster, or a cluster to build for this check.", metavar="NAME|KEY=VALUE,..."),
    ],
    seconds: Annotated[float, typer.Option("--seconds", help="Duration of each measurement.", min=0.1)] = 1.0,
    without_cpu_shares: WithoutShares = False,
    json_target: Json = "",
) -> None:
    """Measure bandwidth, latency and CPU shares inside a cluster, and compare them with the requested ones."""
    from paceline.cli.output import check_json_target, console_for, write_json
    from paceline.cluster.check import TOLERANCE, check_cluster
    from paceline.cluster.opening import find_or_build
    from paceline.errors import RunError
    from paceline.results.commands import ClusterCheck
    from paceline.results.study import SCHEMA

    check_json_target(json_target)
    console = console_for(json_target)
    figures = []
    with find_or_build(which, without_cpu_shares=without_cpu_shares) as built:
        console.print(f"Cluster {built.name}: {built.layout.asked}", markup=False)
        for warning in filter(None, (overcommit_warning(built.layout), load_warning())):
            console.print(warning, style="yellow", markup=False)
        for figure in check_cluster(built, seconds=seconds):
            figures.append(figure)
            console.print(_figure_line(figure), markup=False)
        name, asked = built.name, built.layout.asked
    wrong = [figure for figure in figures if not figure.is_met]
    write_json(ClusterCheck(schema=SCHEMA, name=name, asked=asked, passed=not wrong, figures=figures), json_target)
    if wrong:
        misses = "; ".join(f"{figure.what} {figure.where} {_quantity(figure, figure.measured)}" for figure in wrong)
        raise RunError(
            f"{len(wrong)} of {len(figures)} figures are not as requested (within {TOLERANCE:.0%}): {misses}"
        )


def _address_range(addresses: list[str]) -> str:
    first, last = addresses[0], addresses[-1]
    return first if first == last else f"{first} to {last}"


def _cluster_line(cluster: ListedCluster) -> str:
    """Describe a cluster in one line that begins with its name."""
    end = f"ends with process {cluster.parent}" if cluster.parent else "stays until down"
    not_ready = "" if cluster.is_ready else ", not ready"
    return (
        f"{cluster.name:8}  {cluster.asked}, {_address_range(cluster.addresses)}, {len(cluster.processes)} processes "
        f"inside, {end}{not_ready}"
    )


def overcommit_warning(layout: ClusterLayout, num_cores: int | None = None) -> str:
    """Return a warning if the CPU shares of all nodes exceed the cores of the machine, else an empty string."""
    shares, cores = sum(node.cpus or 0 for node in layout.nodes), num_cores or os.cpu_count() or 1
    if shares <= cores:
        return ""
    return (
        f"CPU shares add up to {shares:g} cores, but this machine has {cores}: nodes get less than their share while "
        "all of them are busy."
    )


def load_warning(load: float | None = None, num_cores: int | None = None) -> str:
    """Return a warning if the load average of the last minute is at least 75 % of the cores, else an empty string."""
    load, cores = os.getloadavg()[0] if load is None else load, num_cores or os.cpu_count() or 1
    if load < 0.75 * cores:
        return ""
    return f"This machine is busy (load {load:.1f} on {cores} cores): figures may be lower than requested."


def _figure_line(figure: ClusterFigure) -> str:
    """Describe a measurement in one line: the measured value, the requested one, and whether the two agree."""
    line = f"{figure.what:10} {figure.where:10} {_quantity(figure, figure.measured):>14}"
    if figure.asked is None:
        return f"{line} (not requested)"
    percent = f"{100 * figure.measured / figure.asked:5.1f} %"
    return f"{line} of {_quantity(figure, figure.asked):14} {percent}  {'' if figure.is_met else 'NOT '}as requested"


def _quantity(figure: ClusterFigure, value: float) -> str:
    from paceline.cluster.check import BANDWIDTH, CPU, LATENCY

    if figure.what == BANDWIDTH:
        return f"{value / 1e9:.3f} Gbit/s" if value >= 1e9 else f"{value / 1e6:.1f} Mbit/s"
    if figure.what == LATENCY:
        return f"{1e3 * value:.3f} ms"
    return f"{value:.3f} cores" if figure.what == CPU else f"{value / 2**20:,.0f} MiB"


def register(app: typer.Typer) -> None:
    app.add_typer(cluster, name="cluster")
