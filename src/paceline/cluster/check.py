"""Compare an emulated cluster's settings with the bandwidth, latency, CPU and memory measured inside its nodes."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from paceline.cluster.group_files import read_group_file
from paceline.cluster.layout import group_folder
from paceline.cluster.opening import Cluster
from paceline.errors import RunError
from paceline.results.commands import ClusterFigure

TOLERANCE = 0.05  # relative, of bandwidth, CPU and memory
LATENCY_TOLERANCE = 0.1  # relative
LATENCY_SLACK_S = 0.0002  # latency that two busy network stacks may add
ALL_PAIRS_UP_TO = 6  # in clusters of at most this many nodes, all pairs are measured
ATTEMPTS = 3  # a busy machine only lowers a result, so a result that is too low is measured again
PINGS = 100
JOB_S = 60.0  # time limit of one measurement

BANDWIDTH, LATENCY, CPU, MEMORY = "bandwidth", "latency", "cpus", "memory"


def check_cluster(cluster: Cluster, *, seconds: float = 1.0, attempts: int = ATTEMPTS) -> Iterator[ClusterFigure]:
    """Measure links, CPU shares and memory limits of a cluster, and yield each result when it is complete.

    Measurements run one at a time so that they do not disturb each other. `seconds` is the duration of one measurement
    of bandwidth or CPU. Such a measurement is repeated if its result is too low, up to `attempts` times in all. CPU is
    measured only on nodes with a CPU limit, and memory only on nodes with a memory limit.
    """
    pairs = measured_pairs(cluster)
    for source, target in pairs:
        expected = cluster.layout.expected_bits_per_s(source, target)
        rate = _best(partial(measure_bandwidth, cluster, source, target, seconds), expected, attempts)
        yield _figure(BANDWIDTH, f"{source} to {target}", expected, rate)
    for source, target in pairs:
        if source < target:
            yield _latency_figure(cluster, source, target)
    for index, node in enumerate(cluster.layout.nodes):
        if node.cpus is not None:
            share = _best(partial(measure_cpu_share, cluster, index, seconds), node.cpus, attempts)
            yield _figure(CPU, f"node {index}", node.cpus, share)
        if node.memory_bytes is not None:
            limit = read_memory_limit(cluster, index)
            yield _figure(MEMORY, f"node {index}", float(node.memory_bytes), limit)


def measured_pairs(cluster: Cluster) -> list[tuple[int, int]]:
    """Return pairs (source, target) of nodes whose link is measured; each pair is listed in both directions.

    In a cluster of more than `ALL_PAIRS_UP_TO` nodes, only two kinds of pairs are measured: nodes with adjacent indices
    (the last and the first node are also a pair), and pairs whose link has its own rate.
    """
    count = len(cluster.layout.nodes)
    if count <= ALL_PAIRS_UP_TO:
        return list(itertools.permutations(range(count), 2))
    chosen = {(index, (index + 1) % count) for index in range(count)}
    chosen |= {(index, peer) for index, node in enumerate(cluster.layout.nodes) for peer in node.peers_bits_per_s}
    return sorted(chosen | {(b, a) for a, b in chosen})


def measure_bandwidth(cluster: Cluster, source: int, target: int, seconds: float) -> float:
    """Return the payload rate of one TCP connection between two nodes, in bits per second.

    The sending and the receiving process are not limited to the CPU shares of their nodes.
    """
    with _listening(cluster, target) as (listener, port):
        words = ["send", cluster.nodes[target].address, port, str(seconds)]
        _measure(cluster, source, words, with_shares=False)
        received = json.loads(_finish(listener))
    return float(8 * received["bytes"] / received["seconds"])


def measure_latency(cluster: Cluster, source: int, target: int) -> float:
    """Return the one-way latency between two nodes in seconds: half the median round trip of one byte."""
    with _listening(cluster, target) as (listener, port):
        words = ["ping", cluster.nodes[target].address, port, str(PINGS)]
        trips = json.loads(_measure(cluster, source, words, with_shares=False))
        _finish(listener)
    return float(trips["median_s"] / 2)


def measure_cpu_share(cluster: Cluster, index: int, seconds: float) -> float:
    """Return the number of cores that a fully busy node gets: CPU seconds per second."""
    processes = math.ceil(cluster.layout.nodes[index].cpus or 1)
    spun = json.loads(_measure(cluster, index, ["spin", str(seconds), str(processes)], with_shares=True))
    return float(spun["cpus"])


def read_memory_limit(cluster: Cluster, index: int) -> float:
    """Return the memory limit in bytes that the kernel applies to a node, rounded to whole pages."""
    controller = next(one for one in cluster.layout.controllers if one.name == "memory")
    name = "memory.max" if controller.version == 2 else "memory.limit_in_bytes"
    folder = group_folder(controller, cluster.name) / f"node-{index}"
    return float(read_group_file(folder / name))


def _latency_figure(cluster: Cluster, source: int, target: int) -> ClusterFigure:
    asked = cluster.layout.nodes[source].latency_s
    measured = measure_latency(cluster, source, target)
    high = (asked or 0) * (1 + LATENCY_TOLERANCE) + LATENCY_SLACK_S
    is_met = asked is None or asked * (1 - LATENCY_TOLERANCE) <= measured <= high
    where = f"{source} and {target}"
    return ClusterFigure(what=LATENCY, where=where, asked=asked, measured=measured, is_met=is_met)


def _figure(what: str, where: str, asked: float | None, measured: float) -> ClusterFigure:
    is_met = asked is None or abs(measured / asked - 1) <= TOLERANCE
    return ClusterFigure(what=what, where=where, asked=asked, measured=measured, is_met=is_met)


def _best(measure: Callable[[], float], asked: float | None, attempts: int) -> float:
    """Repeat a measurement while its value is too low, and return the highest value.

    A value is too low if it is below `asked` by more than the fraction `TOLERANCE`. There are at most `attempts`
    measurements, and only one if `asked` is None.
    """
    best = measure()
    for _ in range(attempts - 1):
        if asked is None or best >= asked * (1 - TOLERANCE):
            break
        best = max(best, measure())
    return best


@contextmanager
def _listening(cluster: Cluster, index: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Context manager: in a node, run a process that serves one connection; yield the process and its port.

    The process sends each byte back, or measures the rate of arriving bytes, as its peer requests. After the block,
    the process is killed.
    """
    popen = _start(cluster, index, ["listen", cluster.nodes[index].address], with_shares=False)
    assert popen.stdout is not None
    try:
        port = popen.stdout.readline().strip()
        if not port:
            _finish(popen)
        yield popen, port
    finally:
        popen.kill()
        popen.communicate()


def _measure(cluster: Cluster, index: int, words: list[str], *, with_shares: bool) -> str:
    return _finish(_start(cluster, index, words, with_shares=with_shares))


def _start(cluster: Cluster, index: int, words: list[str], *, with_shares: bool) -> subprocess.Popen[str]:
    meter = [sys.executable, "-m", "paceline.cluster.link_meter", *words]
    command = cluster.command(index, meter, with_shares=with_shares)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _finish(popen: subprocess.Popen[str]) -> str:
    try:
        out, error = popen.communicate(timeout=JOB_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.communicate()
        raise RunError(f"a measurement inside a node took more than {JOB_S:g} s") from None
    if popen.returncode:
        reason = (error.strip().splitlines() or [f"exit code {popen.returncode}"])[-1]
        raise RunError(f"a measurement inside a node failed: {reason}")
    return out
