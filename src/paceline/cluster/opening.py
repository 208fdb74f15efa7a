"""Open a cluster for a `with` block, keep one until it is taken down, or find a kept one by name."""

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

from paceline.cluster.discovery import MODULE, living_keepers, wait_for_end
from paceline.cluster.layout import FIRST_NODE_FD, MOST_NODES, NAME_PATTERN, USER, ClusterLayout, NodeLayout
from paceline.cluster.removal import remove_cluster, take_down
from paceline.cluster.support import Host, check_host, examine, no_group
from paceline.errors import RunError, UsageError, unknown
from paceline.recipe import ClusterConfig, cluster_of

STOP_S = 20.0  # for the keeper to end the processes inside and remove the cgroups


@dataclass(frozen=True)
class Node:
    """An emulated host."""

    index: int
    address: str


@dataclass(frozen=True)
class Cluster:
    """A running cluster and the process id of its keeper."""

    plan: ClusterLayout
    keeper: int

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def nodes(self) -> list[Node]:
        return [Node(index, self.plan.address(index)) for index in range(len(self.plan.nodes))]

    def command(self, index: int, command: list[str], *, with_shares: bool = True) -> list[str]:
        """Return the command line that runs a command inside a node, with the same process id and file descriptors.

        It joins the node's cgroups first (unless `with_shares` is false), then the node's network.
        """
        if not 0 <= index < len(self.plan.nodes):
            raise UsageError(f"node {index} is not one of 0 to {len(self.plan.nodes) - 1} of cluster {self.name}")
        process = f"/proc/{self.keeper}"
        user = [f"--user={process}/ns/user", "--preserve-credentials"] if self.plan.entry == USER else []
        enter = [
            shutil.which("nsenter") or "nsenter",
            *user,
            f"--net={process}/fd/{FIRST_NODE_FD + index}",
            "--",
            *command,
        ]
        folders = self.plan.node_folders(index) if with_shares else []
        if not folders:
            return enter
        joins = [f"echo $$ > {shlex.quote(folder)}/cgroup.procs" for folder in folders]
        return ["/bin/sh", "-c", f'{" && ".join(joins)} && exec "$@"', "sh", *enter]


@contextlib.contextmanager
def open_cluster(
    config: ClusterConfig, *, name: str = "", without_cpu_shares: bool = False, host: Host | None = None
) -> Iterator[Cluster]:
    """Open a cluster that ends with the block, or with this process however it ends."""
    plan = make_layout(config, name=name, without_cpu_shares=without_cpu_shares, host=host, parent=os.getpid())
    keeper = _start(plan)
    try:
        yield Cluster(plan, _await_ready(plan, keeper))
    finally:
        _stop(plan, keeper)


def keep_cluster(
    config: ClusterConfig, *, name: str = "", without_cpu_shares: bool = False, host: Host | None = None
) -> Cluster:
    """Build a cluster that stays until `removal.take_down`, even after this process ends."""
    plan = make_layout(config, name=name, without_cpu_shares=without_cpu_shares, host=host, parent=0)
    starter = _start(plan)
    try:
        return Cluster(plan, _await_ready(plan, starter))
    except KeyboardInterrupt:
        starter.communicate()  # until it is ready and can be taken down
        take_down(plan.name)
        raise
    finally:
        starter.communicate()


def find_cluster(name: str) -> Cluster:
    """Return the running cluster of that name."""
    found = {keeper.plan.name: keeper for keeper in living_keepers() if keeper.is_ready}
    if not found:
        raise UsageError(f"there is no cluster {name!r}, nor any other; `paceline cluster up` builds one")
    if name not in found:
        raise unknown("cluster", name, found)
    return Cluster(found[name].plan, found[name].pid)


@contextlib.contextmanager
def found_or_built(which: str, *, without_cpu_shares: bool) -> Iterator[Cluster]:
    """Yield a kept cluster by its name, or build one from words such as `nodes=4` for the block."""
    if "=" not in which:
        yield find_cluster(which)
        return
    try:
        with open_cluster(cluster_of(which), without_cpu_shares=without_cpu_shares) as cluster:
            yield cluster
    except KeyboardInterrupt:
        raise RunError("interrupted: the cluster is down") from None


def make_layout(
    config: ClusterConfig, *, name: str, without_cpu_shares: bool, host: Host | None, parent: int
) -> ClusterLayout:
    """Check the request and return the layout; nothing is started."""
    if without_cpu_shares:
        config = dataclasses.replace(config, cpus=None, slow=())
    if not 1 <= config.nodes <= MOST_NODES:
        raise UsageError(f"a cluster has 1 to {MOST_NODES} nodes, not {config.nodes} (cluster.nodes)")
    if name and not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"a cluster's name is 1 to 8 small letters and digits, not {name!r}")
    host = host or examine()
    check_host(host, config)
    others = [keeper.plan for keeper in living_keepers()]
    if name in {other.name for other in others}:
        raise UsageError(f"there is a cluster {name!r} already; `paceline cluster down {name}` takes it down")
    wanted = {"cpu": bool(config.cpus or config.slow), "memory": bool(config.memory)}
    return ClusterLayout(
        name=name or secrets.token_hex(3),
        nodes=tuple(_node_plan(config, index, host.num_cores) for index in range(config.nodes)),
        asked=in_words(config),
        subnet=_free_subnet({other.subnet for other in others}),
        entry=host.entry,
        controllers=tuple(one for one in host.controllers if wanted[one.name]),
        parent=parent,
    )


def in_words(config: ClusterConfig) -> str:
    """Return the configuration in the form that `--cluster` takes."""
    words = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        values = value if isinstance(value, tuple) else [value]
        words += [f"{field.name}={one:g}" if isinstance(one, float) else f"{field.name}={one}" for one in values if one]
    return ",".join(words)


def _node_plan(config: ClusterConfig, index: int, num_cores: int) -> NodeLayout:
    part = config.slowness.get(index)
    cpus = config.cpus
    if part is not None:
        # If cpus is unset, slow applies to one core, or to a fair share of the machine if that is less.
        cpus = part * (cpus or min(1.0, num_cores / config.nodes))
    pairs = config.link_bits_per_s.items()
    return NodeLayout(
        cpus=cpus,
        memory_bytes=config.memory_bytes,
        bits_per_s=config.bits_per_s,
        latency_s=config.latency_s,
        loss_fraction=config.loss_fraction,
        peers_bits_per_s={sum(pair) - index: rate for pair, rate in pairs if index in pair},
    )


def _free_subnet(taken: set[str]) -> str:
    """Return a subnet that no running cluster uses; a race is harmless, since the networks are isolated."""
    return next((f"10.77.{number}" for number in range(256) if f"10.77.{number}" not in taken), "10.78.0")


def _start(plan: ClusterLayout) -> subprocess.Popen[bytes]:
    # A new session: Ctrl-C reaches only this process, which then stops the keeper in order.
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, plan.to_json()],
        stdin=subprocess.PIPE if plan.parent else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _await_ready(plan: ClusterLayout, starter: subprocess.Popen[bytes]) -> int:
    """Wait until the cluster is built and return the keeper's process id; raise with the keeper's reason."""
    assert starter.stdout is not None
    last = "its keeper ended without a message"
    for line in starter.stdout:
        try:
            answer = json.loads(line)
            error, part, pid = str(answer["error"]), str(answer["part"]), int(answer["pid"])
        except (ValueError, KeyError, TypeError):  # a warning or a traceback of Python's
            last = line.decode(errors="replace").strip() or last
            continue
        if error and part:
            raise UsageError(no_group(part, error))
        if error:
            raise RunError(f"cluster {plan.name} cannot be built: {error}")
        return pid
    raise RunError(f"cluster {plan.name} cannot be built: {last}")


def _stop(plan: ClusterLayout, keeper: subprocess.Popen[bytes]) -> None:
    """Stop the keeper, which takes the cluster down; clean up after one that was killed or hangs."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.close()
    is_stuck = not wait_for_end(keeper.pid, STOP_S)
    if is_stuck:
        keeper.kill()
    keeper.stdout.close()
    if keeper.wait() or is_stuck:
        remove_cluster(plan.name)
