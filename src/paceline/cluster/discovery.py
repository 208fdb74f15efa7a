"""Finding clusters by name, and building them from words such as `nodes=4,bandwidth=1gbit`.

Who is there: keepers of clusters, and processes inside nodes, found by their labels; and their end, by id.

No list is kept in a file that could be lost or lie: a keeper's command line says what it keeps, and a process is inside
a cluster when its network has the cluster's interface, or its cgroup the cluster's name.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.cgroups import labelled_groups, members
from paceline.cluster.layout import INTERFACE, ClusterLayout
from paceline.results.commands import ListedCluster


def describe(keeper: Keeper) -> ListedCluster:
    """A cluster as `list` shows it."""
    plan = keeper.plan
    return ListedCluster(
        name=plan.name,
        asked=plan.asked,
        addresses=[plan.address(index) for index in range(len(plan.nodes))],
        is_ready=keeper.is_ready,
        keeper=keeper.pid,
        parent=plan.parent or None,
        processes=sorted(processes_inside(plan.name, but=keeper.pid)),
        cgroups=plan.group_folders(),
    )


MODULE = "paceline.cluster.keeper"
GRACE_S = 1.0  # between asking a process to end and making it
END_S = 10.0


@dataclass(frozen=True)
class Keeper:
    """A process that holds a cluster."""

    pid: int
    plan: ClusterLayout
    is_ready: bool


def living_keepers() -> list[Keeper]:
    """Keepers of all clusters that this user can see, by name."""
    found: dict[int, Keeper] = {}
    for pid in _pids():
        plan = _kept_by(pid)
        if plan is not None:
            found[pid] = Keeper(pid, plan, _read(f"/proc/{pid}/comm").strip() == ready_name(plan))
    # What a keeper starts looks like itself for a moment.
    alone = [keeper for keeper in found.values() if _parent_of(keeper.pid) not in found]
    return sorted(alone, key=lambda keeper: (keeper.plan.name, keeper.pid))


def ready_name(plan: ClusterLayout) -> str:
    """What a keeper calls itself when everything is built."""
    return f"{INTERFACE}{plan.name}"


def processes_inside(name: str, *, but: int = 0) -> set[int]:
    """Processes in the cluster's networks and cgroups, without its keeper."""
    found = {pid for folder in labelled_groups().get(name, []) for pid in members(folder)}
    found |= {pid for pid, owner in clusters_by_process().items() if owner == name}
    return found - {but, os.getpid()}


def names_inside() -> set[str]:
    """Clusters that some process is inside of, whether or not their keeper lives."""
    return set(clusters_by_process().values())


def end_processes(name: str, *, but: int = 0) -> int:
    """End what runs inside a cluster, one by one; how many there were. OSError names those that do not end."""
    ended: set[int] = set()
    asked: set[int] = set()
    started = math.inf  # counts from when they were found: looking takes its time on a busy machine
    while inside := processes_inside(name, but=but):
        started = min(started, time.monotonic())
        is_polite = time.monotonic() < started + GRACE_S
        if time.monotonic() > started + END_S:
            raise OSError(f"processes {', '.join(map(str, sorted(inside)))} of cluster {name} do not end")
        for pid in inside - (asked if is_polite else set()):
            _end(pid, name, signal.SIGTERM if is_polite else signal.SIGKILL)
        asked |= inside
        ended |= inside
        time.sleep(0.02)
    return len(ended)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Whether a process has ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _end(pid: int, name: str, number: signal.Signals) -> None:
    """Signal the process that has this id and still is inside; a process that took the id over is left alone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if pid in processes_inside(name):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def clusters_by_process() -> dict[int, str]:
    """The cluster that each process is in the network of."""
    own = _network_of(os.getpid())
    by_network: dict[str, str] = {own: ""}
    found = {}
    for pid in _pids():
        network = _network_of(pid)
        if network and network not in by_network:
            by_network[network] = _label_in(_read(f"/proc/{pid}/net/dev"))
        if by_network.get(network):
            found[pid] = by_network[network]
    return found


def _label_in(interfaces: str) -> str:
    """The cluster whose interface a `/proc/PID/net/dev` lists."""
    for line in interfaces.splitlines()[2:]:
        device = line.partition(":")[0].strip()
        if device.startswith(INTERFACE) and device.count("-") == 2:
            return device.split("-")[1]
    return ""


def _network_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""  # gone, or somebody else's


def _kept_by(pid: int) -> ClusterLayout | None:
    words = _read(f"/proc/{pid}/cmdline").split("\0")
    if MODULE not in words[1:4]:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not a line that we wrote
        return ClusterLayout.from_json(words[words.index(MODULE) + 1])
    return None


def _parent_of(pid: int) -> int:
    after_name = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the process has ended


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())
