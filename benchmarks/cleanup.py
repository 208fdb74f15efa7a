"""Clean-up of emulated nodes after their owner is killed at a random moment.

    python benchmarks/cleanup.py --kills 20
    python benchmarks/cleanup.py --kills 20 -- paceline run --cluster nodes=2,cpus=0.5,bandwidth=1gbit

Starts a command and kills its process alone (SIGKILL) at a random moment; the default command is a program that opens a
cluster of two nodes with processes that share memory, listen and compute. Every fourth time
the cluster's keeper is killed as well, so that `paceline cluster prune` is tested. Then prints the resources that
remain: network namespaces, bridges and other interfaces, cgroups, processes, shared-memory segments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from paceline.cluster import open_cluster
from paceline.cluster.cgroups import labelled_groups
from paceline.cluster.running import clusters_by_process, living_keepers, processes_inside
from paceline.recipe import ClusterConfig

MARK = "PACELINE_CLEANUP"  # an environment variable, which everything that a command starts inherits
SETTLE_S = 30.0
START_S = 120.0
KEEPER_TOO_EVERY = 4
INNER = """
import mmap, os, socket
descriptor = os.memfd_create("segment")
os.truncate(descriptor, 1 << 20)
memory = mmap.mmap(descriptor, 1 << 20)
server = socket.create_server(("", 4000))
while True:
    memory[:4] = memory[4:8]
"""


@dataclass(frozen=True)
class Scene:
    """Resources on this machine that a cluster could have created."""

    namespaces: frozenset[str]
    interfaces: frozenset[str]
    cgroups: frozenset[str]
    processes: frozenset[str]
    segments: frozenset[str]

    def beyond(self, before: Scene) -> list[str]:
        """Return the resources that did not exist before."""
        names = [field.name for field in fields(Scene)]
        return [f"{name}: {one}" for name in names for one in sorted(getattr(self, name) - getattr(before, name))]


def look(mark: str) -> Scene:
    """Return the current resources, without clusters of others, whose keepers lack the mark."""
    marked = {process.pid: process for process in psutil.process_iter() if _has(process, mark)}
    others = {keeper.layout.name for keeper in living_keepers() if keeper.pid not in marked}
    groups = [folder for name, folders in labelled_groups().items() if name not in others for folder in folders]
    held = {network for pid in marked for network in _networks(pid)}
    return Scene(
        namespaces=frozenset(
            held | {f"of cluster {name}" for name in clusters_by_process().values() if name not in others}
        ),
        interfaces=frozenset(psutil.net_if_stats()),
        cgroups=frozenset(map(str, groups)),
        processes=frozenset(f"{pid} {_words(process)}" for pid, process in marked.items()),
        segments=frozenset(os.listdir("/dev/shm")),
    )


def _has(process: psutil.Process, mark: str) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended, or belongs to another user
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    return False


def _networks(pid: int) -> set[str]:
    """Return network namespaces that any process is in or holds open, except that of this process."""
    links = set()
    with contextlib.suppress(OSError):
        for path in [f"/proc/{pid}/ns/net", *(f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd"))]:
            links.add(os.readlink(path))
    return {link for link in links if link.startswith("net:") and link != os.readlink("/proc/self/ns/net")}


def _words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())[:60]
    return "(ended)"


def wait_for_order(mark: str, before: Scene) -> tuple[list[str], float]:
    """Wait for clean-up; return the remaining resources and the seconds waited."""
    started = time.monotonic()
    while (left := look(mark).beyond(before)) and time.monotonic() < started + SETTLE_S:
        time.sleep(0.05)
    return left, time.monotonic() - started


def kill_once(
    command: list[str], delay_s: float, *, keeper_too: bool, before: Scene
) -> tuple[list[str], list[str], float]:
    """Start, kill and wait; return what was left, what was left after `prune`, and the seconds until clean."""
    mark = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, MARK: mark}
        quiet = subprocess.DEVNULL
        popen = subprocess.Popen(command, env=environment, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet)
        time.sleep(delay_s)
        mine = [keeper.pid for keeper in living_keepers() if keeper.layout.parent == popen.pid] if keeper_too else []
        popen.kill()
        for pid in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        popen.wait()
        left, seconds = ([], 0.0) if mine else wait_for_order(mark, before)
        subprocess.run([sys.executable, "-m", "paceline", "cluster", "prune"], check=True, stdout=quiet)
        after, more = wait_for_order(mark, before)
    return left, after, seconds + more


def seconds_until_busy(command: list[str]) -> float:
    """Return the seconds from the start of a command until processes run in its nodes."""
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        popen = subprocess.Popen(command, cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            while popen.poll() is None and time.monotonic() < started + START_S:
                mine = [keeper for keeper in living_keepers() if keeper.layout.parent == popen.pid]
                if any(processes_inside(keeper.layout.name, excluding=keeper.pid) for keeper in mine):
                    return time.monotonic() - started
                time.sleep(0.02)
        finally:
            popen.kill()
            popen.wait()
    raise SystemExit(f"no process ran in a node within {START_S:g} s: {' '.join(command)}")


def be_killed() -> None:
    """Run the default program to kill."""
    with open_cluster(ClusterConfig(nodes=2, cpus=0.3, bandwidth="100mbit")) as cluster:
        for node in cluster.nodes:
            subprocess.Popen(cluster.command(node.index, [sys.executable, "-c", INNER]), start_new_session=True)
        time.sleep(3600)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--within", type=float, help="latest second of a kill (default: 1.5 x the start-up time)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs="*", help="command to kill, after --")
    arguments = parser.parse_args()
    if arguments.victim:
        be_killed()
        return 0
    command = arguments.command or [sys.executable, str(Path(__file__).resolve()), "--victim"]
    within_s = arguments.within or 1.5 * seconds_until_busy(command)
    print(f"kills within {within_s:.2f} s of the start")
    chance, before, bad = random.Random(arguments.seed), look(""), []
    for number in range(1, arguments.kills + 1):
        delay_s, keeper_too = chance.uniform(0, within_s), number % KEEPER_TOO_EVERY == 0
        left, after, seconds = kill_once(command, delay_s, keeper_too=keeper_too, before=before)
        bad += [*left, *after]
        who = "with its keeper" if keeper_too else "alone"
        found = f"nothing left within {seconds:.2f} s"
        if left or after:
            found = f"left {'; '.join(left) or 'nothing'}; after prune {'; '.join(after) or 'nothing'}"
        print(f"{number:3} killed {who} after {delay_s:.2f} s: {found}", flush=True)
    verdict = "nothing is left" if not bad else f"{len(bad)} things were left"
    print(f"{arguments.kills} kills: {verdict} (namespaces, interfaces, cgroups, processes, shared-memory segments)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
