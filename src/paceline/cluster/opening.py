"""Start an emulated cluster or find a running one by name.

A cluster of `open_cluster` exists until the end of the `with` block. A cluster of `keep_cluster` exists until
`paceline cluster down`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.cgroups import reason_of
from paceline.cluster.group_files import check_group_folder
from paceline.cluster.layout import FIRST_NODE_FD, MOST_NODES, NAME_PATTERN, USER, ClusterLayout, NodeLayout
from paceline.cluster.running import (
    DOWN_S,
    KEEPER_MODULE,
    find_keeper,
    living_keepers,
    remove_leftovers,
    take_down,
    wait_for_end,
)
from paceline.cluster.support import Host, check_host, examine, no_controller, requested_controllers
from paceline.errors import RunError, UsageError
from paceline.recipe import ClusterConfig, cluster_of


@dataclass(frozen=True)
class Node:
    """An emulated host: its index in the cluster and its IPv4 address."""

    index: int
    address: str


@dataclass(frozen=True)
class Cluster:
    """A running cluster. `keeper` is the id of the process that holds its network namespaces."""

    layout: ClusterLayout
    keeper: int

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def nodes(self) -> list[Node]:
        return [Node(index, self.layout.address(index)) for index in range(len(self.layout.nodes))]

    def command(self, index: int, command: list[str], *, with_shares: bool = True) -> list[str]:
        """Return the command line that runs a command inside a node.

        The new process joins the node's cgroups (unless `with_shares` is false) and then the node's network. Finally it
        executes `command`, and keeps its process id and file descriptors.
        """
        if not 0 <= index < len(self.layout.nodes):
            raise UsageError(f"node {index} is not one of 0 to {len(self.layout.nodes) - 1} of cluster {self.name}")
        process = f"/proc/{self.keeper}"
        user = [f"--user={process}/ns/user", "--preserve-credentials"] if self.layout.entry == USER else []
        network = f"--net={process}/fd/{FIRST_NODE_FD + index}"
        enter = [shutil.which("nsenter") or "nsenter", *user, network, "--", *command]
        folders = self.layout.node_folders(index) if with_shares else []
        if not folders:
            return enter
        joins = [f"echo $$ > {shlex.quote(folder)}/cgroup.procs" for folder in folders]
        return ["/bin/sh", "-c", f'{" && ".join(joins)} && exec "$@"', "sh", *enter]


@contextlib.contextmanager
def open_cluster(
    config: ClusterConfig, *, name: str = "", without_cpu_shares: bool = False, host: Host | None = None
) -> Iterator[Cluster]:
    """Context manager: start a cluster and remove it after the block, or when this process ends for any reason.

    With `without_cpu_shares`, the settings `cpus` and `slow` are ignored.
    """
    layout = make_layout(config, name=name, without_cpu_shares=without_cpu_shares, host=host, parent=os.getpid())
    keeper = _start(layout)
    try:
        yield Cluster(layout, _await_ready(layout, keeper))
    finally:
        _stop(layout, keeper)


def keep_cluster(
    config: ClusterConfig, *, name: str = "", without_cpu_shares: bool = False, host: Host | None = None
) -> Cluster:
    """Start a cluster that stays until `paceline cluster down`, even after this process ends."""
    layout = make_layout(config, name=name, without_cpu_shares=without_cpu_shares, host=host, parent=0)
    starter = _start(layout)
    try:
        return Cluster(layout, _await_ready(layout, starter))
    except KeyboardInterrupt:
        starter.communicate()  # wait until the cluster is ready and can be taken down
        take_down(layout.name)
        raise
    finally:
        starter.communicate()


def find_cluster(name: str) -> Cluster:
    """Return the running cluster named `name`; raise UsageError if there is none."""
    keeper = find_keeper(name, [keeper for keeper in living_keepers() if keeper.is_ready])
    for folder in keeper.layout.group_folders():
        _check_folder(folder)  # the shell in `Cluster.command` would follow links
    return Cluster(keeper.layout, keeper.pid)


@contextlib.contextmanager
def find_or_build(which: str, *, without_cpu_shares: bool) -> Iterator[Cluster]:
    """Context manager: yield the running cluster named `which`, or start one from settings such as `nodes=4`.

    A cluster that was started is removed after the block.
    """
    if "=" not in which:
        yield find_cluster(which)
        return
    try:
        with open_cluster(cluster_of(which), without_cpu_shares=without_cpu_shares) as cluster:
            yield cluster
    except KeyboardInterrupt:
        raise RunError("interrupted: the cluster was removed") from None


def make_layout(
    config: ClusterConfig, *, name: str, without_cpu_shares: bool, host: Host | None, parent: int
) -> ClusterLayout:
    """Check a cluster's settings and return its layout, without starting the cluster.

    The cluster ends when the process with the id `parent` ends. If `parent` is 0, the cluster stays until
    `paceline cluster down`. If `host` is None, this machine is examined first.
    """
    if without_cpu_shares:
        config = dataclasses.replace(config, cpus=None, slow=())
    if not 1 <= config.nodes <= MOST_NODES:
        raise UsageError(f"a cluster has 1 to {MOST_NODES} nodes, not {config.nodes} (cluster.nodes)")
    if name and not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"a cluster's name is 1 to 8 lowercase letters and digits, not {name!r}")
    host = host or examine()
    check_host(host, config)
    others = [keeper.layout for keeper in living_keepers()]
    if name in {other.name for other in others}:
        raise UsageError(
            f"cluster {name!r} exists already; remove it with `paceline cluster down {name}`, or choose another name"
        )
    needed = requested_controllers(config)
    return ClusterLayout(
        name=name or secrets.token_hex(3),
        nodes=tuple(_node_layout(config, index, host.num_cores) for index in range(config.nodes)),
        asked=str(config),
        subnet=_free_subnet({other.subnet for other in others}),
        entry=host.entry,
        controllers=tuple(one for one in host.controllers if one.name in needed),
        parent=parent,
    )


def _node_layout(config: ClusterConfig, index: int, num_cores: int) -> NodeLayout:
    cpus = config.cpus
    if index in config.slowness:
        # If cpus is unset, slow applies to one core, or to a fair share of the machine if that is less.
        cpus = config.slowness[index] * (cpus or min(1.0, num_cores / config.nodes))
    pairs = config.link_bits_per_s.items()
    return NodeLayout(
        cpus=cpus,
        memory_bytes=config.memory_bytes,
        bits_per_s=config.bits_per_s,
        latency_s=config.latency_s,
        loss_fraction=config.loss_fraction,
        peers_bits_per_s={sum(pair) - index: rate for pair, rate in pairs if index in pair},
    )


def _free_subnet(used: set[str]) -> str:
    """Return the first three numbers of a /24 subnet that no running cluster uses; 10.78.0 if all of 10.77.* are used.

    If two clusters get the same subnet in a race, this is harmless, since their networks are isolated.
    """
    return next((f"10.77.{number}" for number in range(256) if f"10.77.{number}" not in used), "10.78.0")


def _check_folder(folder: str) -> None:
    try:
        check_group_folder(Path(folder))
    except OSError as error:
        raise RunError(f"{folder} is not a cgroup of this cluster: {reason_of(error)}") from None


def _start(layout: ClusterLayout) -> subprocess.Popen[bytes]:
    # In a new session, the keeper does not receive Ctrl-C. This process receives it and then stops the keeper.
    return subprocess.Popen(
        [sys.executable, "-m", KEEPER_MODULE, layout.to_json()],
        stdin=subprocess.PIPE if layout.parent else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _await_ready(layout: ClusterLayout, starter: subprocess.Popen[bytes]) -> int:
    """Wait until a cluster is built. Return the id of its keeper, the process that holds the cluster's namespaces.

    If the cluster cannot be built, raise an error whose message contains the reason that the keeper printed.
    """
    assert starter.stdout is not None
    last = "its keeper process ended without a message"
    for line in starter.stdout:
        try:
            answer = json.loads(line)
            error, controller, pid = str(answer["error"]), str(answer["controller"]), int(answer["pid"])
        except (ValueError, KeyError, TypeError):  # the line is a Python warning or traceback
            last = line.decode(errors="replace").strip() or last
            continue
        if controller:
            raise UsageError(no_controller(controller, error))
        if error:
            raise RunError(f"cluster {layout.name} cannot be built: {error}")
        return pid
    raise RunError(f"cluster {layout.name} cannot be built: {last}")


def _stop(layout: ClusterLayout, keeper: subprocess.Popen[bytes]) -> None:
    """Stop the keeper, which removes the cluster. If it hangs or has failed, remove the leftovers of the cluster."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.close()
    is_stuck = not wait_for_end(keeper.pid, DOWN_S)
    if is_stuck:
        keeper.kill()
    keeper.stdout.close()
    if keeper.wait() or is_stuck:
        remove_leftovers(layout.name)
