"""Emulated nodes for real: who reaches whom, at which rate, with which share; and that nothing of them is left."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import (
    VICTIM,
    cpu_controller,
    entered_as,
    folders_named,
    host,
    inside,
    is_gone,
    need,
    networked,
    run,
    wait_for,
)
from helpers import python_processes
from paceline.cluster import Cluster, open_cluster
from paceline.cluster.check import BANDWIDTH, CPU, LATENCY, check_cluster
from paceline.cluster.layout import DIRECT, USER
from paceline.cluster.running import living_keepers, processes_inside, prune
from paceline.errors import RunError, UsageError
from paceline.recipe import ClusterConfig

REACH = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2); print('reached')"
SERVE = "import socket, sys; s = socket.create_server((sys.argv[1], 4000)); print(1, flush=True); s.accept()"
INTERFACES = "print(*(line.split(':')[0].strip() for line in open('/proc/self/net/dev') if ':' in line))"


@pytest.fixture
def two() -> Iterator[Cluster]:
    with open_cluster(need(nodes=2)) as cluster:
        yield cluster


@pytest.mark.parametrize("entry", [DIRECT, USER])
def test_nodes_reach_each_other_and_nobody_else(entry: str) -> None:
    config = need(nodes=2)
    with open_cluster(config, host=entered_as(entry)) as cluster, open_cluster(config, host=entered_as(entry)) as other:
        assert {node.address for node in cluster.nodes}.isdisjoint(node.address for node in other.nodes)
        assert [node.index for node in cluster.nodes] == [0, 1]
        server = subprocess.Popen(
            inside(cluster.command(1, []), SERVE, cluster.nodes[1].address), stdout=subprocess.PIPE
        )
        assert server.stdout is not None
        server.stdout.readline()
        target = [cluster.nodes[1].address, "4000"]
        stranger = subprocess.run(
            inside(other.command(0, []), REACH, *target), capture_output=True, timeout=30, check=False
        )
        assert b"unreachable" in stranger.stderr
        assert run(inside(cluster.command(0, []), REACH, *target)) == "reached\n"
        server.communicate(timeout=30)
        with socket.create_server(("127.0.0.1", 0)) as outside:
            words = ["127.0.0.1", str(outside.getsockname()[1])]
            lost = subprocess.run(
                inside(cluster.command(0, []), REACH, *words), capture_output=True, timeout=30, check=False
            )
            assert b"refused" in lost.stderr
    assert is_gone(cluster.name)
    assert is_gone(other.name)


SHAPER = """
from paceline.cluster.network import _complete_tbf
from pyroute2 import IPRoute
_complete_tbf()
with IPRoute() as route:
    (tbf,) = (one for one in route.get_qdiscs() if one.get_attr("TCA_KIND") == "tbf")
options = tbf.get_attr("TCA_OPTIONS")
print(options.get_attr("TCA_TBF_RATE64") or options.get_attr("TCA_TBF_PARMS")["rate"])
"""


@pytest.mark.parametrize(
    ("bandwidth", "bytes_per_s"), [("1mbit", 125_000), ("1gbit", 125_000_000), ("50gbit", 6_250_000_000)]
)
def test_the_kernel_has_the_requested_rate(bandwidth: str, bytes_per_s: int) -> None:
    with open_cluster(need(nodes=2, bandwidth=bandwidth)) as cluster:
        assert int(run(inside(cluster.command(0, []), SHAPER))) == bytes_per_s


def test_a_node_has_interfaces_of_its_own(two: Cluster) -> None:
    assert run(inside(two.command(1, []), INTERFACES)).split() == ["lo", f"pl-{two.name}-1"]
    assert f"pl-{two.name}" not in Path("/proc/self/net/dev").read_text()


def test_file_descriptors_survive(two: Cluster) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(b'hello')"
        run(inside(two.command(0, []), code, str(theirs.fileno())), pass_fds=[theirs.fileno()])
        assert ours.recv(5) == b"hello"


def test_the_process_is_the_one_that_was_started(two: Cluster) -> None:
    popen = subprocess.Popen(inside(two.command(0, []), "import os; print(os.getpid())"), stdout=subprocess.PIPE)
    out, _ = popen.communicate(timeout=30)
    assert int(out) == popen.pid


def test_a_process_joins_its_share_and_its_limit() -> None:
    config = need(nodes=2, cpus=0.5, memory="256m", slow=("1:0.5",))
    with open_cluster(config) as cluster:
        groups = run(cluster.command(1, ["cat", "/proc/self/cgroup"]))
        assert f"/paceline-{cluster.name}/node-1" in groups
        assert f"/paceline-{cluster.name}/" not in run(
            cluster.command(1, ["cat", "/proc/self/cgroup"], with_shares=False)
        )
        greedy = subprocess.run(
            inside(cluster.command(0, []), "b = bytearray(10**9)"), capture_output=True, timeout=150, check=False
        )
        assert greedy.returncode == -signal.SIGKILL
    assert is_gone(cluster.name)


def test_what_still_runs_inside_ends_with_the_cluster(two: Cluster) -> None:
    with open_cluster(need(nodes=2)) as cluster:
        stubborn = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
        )
        process = subprocess.Popen(inside(cluster.command(0, []), stubborn), stdout=subprocess.PIPE)
        other = subprocess.Popen(two.command(0, ["sleep", "99"]))
        assert process.stdout is not None
        process.stdout.readline()
        wait_for(lambda: processes_inside(cluster.name) >= {process.pid}, "the process is inside")
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_an_error_inside_the_block_takes_it_down() -> None:
    with pytest.raises(ZeroDivisionError), open_cluster(need(nodes=1)) as cluster:
        _ = 1 / 0
    assert is_gone(cluster.name)


def test_a_name_is_taken_once(two: Cluster) -> None:
    with (
        pytest.raises(UsageError, match=f"cluster '{two.name}' exists already"),
        open_cluster(need(nodes=1), name=two.name),
    ):
        pass
    assert not is_gone(two.name)


def test_a_share_that_the_kernel_refuses_is_a_mistake_of_the_request() -> None:
    config = need(nodes=1, cpus=0.5)
    broken = tuple(
        dataclasses.replace(one, folder=f"{one.folder}/nowhere") if one.name == "cpu" else one
        for one in host().controllers
    )
    with (
        pytest.raises(UsageError, match=r"CPU shares .*nowhere.*--without-cpu-shares"),
        open_cluster(config, host=dataclasses.replace(host(), controllers=broken)),
    ):
        pass
    with open_cluster(config, host=dataclasses.replace(host(), controllers=()), without_cpu_shares=True) as cluster:
        assert cluster.layout.nodes[0].cpus is None


def test_what_the_kernel_refuses_is_said_and_taken_down() -> None:
    if "netem" in host().shapers:
        pytest.skip("this kernel refuses nothing that can be asked for")
    need(nodes=2, cpus=0.5)
    hopeful = dataclasses.replace(host(), shapers=frozenset({"netem"}))
    with (
        pytest.raises(RunError, match=r"cluster hopeful cannot be built: .*qdisc.* in tc add netem on pl-hopeful-0"),
        open_cluster(ClusterConfig(nodes=2, cpus=0.5, latency="1ms"), name="hopeful", host=hopeful),
    ):
        pass
    assert is_gone("hopeful")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_parent_is_killed(number: int) -> None:
    need(nodes=2, cpus=0.5)
    name = f"kill{number}"
    with python_processes([VICTIM, name, "nodes=2,cpus=0.5"]) as (victim,):
        assert victim.stdout.readline() == "open\n", victim.stderr.read()
        wait_for(lambda: bool(processes_inside(name)), "something runs inside")
        victim.send_signal(number)
        victim.wait(20)
        wait_for(lambda: is_gone(name), "the keeper takes the cluster down")


def test_who_is_on_the_way_in_when_it_ends_is_not_left() -> None:
    need(nodes=1, cpus=0.5)
    late: list[subprocess.Popen[bytes]] = []

    def keep_coming(command: list[str]) -> None:
        for _ in range(40):
            late.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            time.sleep(0.02)

    with python_processes([VICTIM, "late", "nodes=1,cpus=0.5"]) as (victim,):
        assert victim.stdout.readline() == "open\n", victim.stderr.read()
        keeper = next(keeper for keeper in living_keepers() if keeper.layout.name == "late")
        enter = Cluster(keeper.layout, keeper.pid).command(0, ["sleep", "60"])
        coming = threading.Thread(target=keep_coming, args=(enter,))
        coming.start()
        wait_for(lambda: len(late) > 2, "some are on their way")
        victim.kill()
        coming.join()
        wait_for(lambda: is_gone("late"), "the keeper takes the cluster down", 20)
    for process in late:
        process.wait(20)


def test_prune_removes_leftovers_and_nothing_else(two: Cluster) -> None:
    config = need(nodes=2, cpus=0.5)
    bystander_folder = Path(cpu_controller(config), "bystander-of-a-test")
    bystander_folder.mkdir()
    bystander = subprocess.Popen(["sleep", "99"], start_new_session=True)
    neighbour = subprocess.Popen(two.command(0, ["sleep", "99"]), start_new_session=True)
    try:
        with python_processes([VICTIM, "leftover", "nodes=2,cpus=0.5"]) as (victim,):
            assert victim.stdout.readline() == "open\n", victim.stderr.read()
            keeper = next(keeper for keeper in living_keepers() if keeper.layout.name == "leftover")
            wait_for(lambda: len(networked("leftover", excluding=keeper.pid)) == 2, "processes are in both nodes")
            os.kill(keeper.pid, signal.SIGKILL)
            victim.kill()
            victim.wait(20)
            assert folders_named("leftover")
            wait_for(lambda: len(processes_inside("leftover")) == 2, "the keeper has ended, its nodes have not")
            removed = [one for one in prune() if one.name == "leftover"]
        assert [(one.num_processes, len(one.cgroups)) for one in removed] == [(2, 1)]
        assert is_gone("leftover")
        assert not [one for one in prune() if one.name == "leftover"]
        assert bystander.poll() is None
        assert neighbour.poll() is None
        assert bystander_folder.exists()
        assert not is_gone(two.name)
    finally:
        bystander_folder.rmdir()
        for process in (bystander, neighbour):
            process.kill()
            process.wait()


def test_a_killed_keepers_work_is_done_by_the_parent() -> None:
    with open_cluster(need(nodes=1, cpus=0.5)) as cluster:
        inner = subprocess.Popen(cluster.command(0, ["sleep", "99"]))
        wait_for(lambda: inner.pid in networked(cluster.name, excluding=cluster.keeper), "the process is inside")
        os.kill(cluster.keeper, signal.SIGKILL)
    assert inner.wait(10) == -signal.SIGTERM
    assert is_gone(cluster.name)


@pytest.mark.slow
def test_links_and_shares_are_no_faster_than_asked() -> None:
    """A busy machine may make them slower; `paceline cluster check` on a quiet one shows how near they come."""
    config = need(nodes=3, cpus=0.4, bandwidth="50mbit", links=("0-2:10mbit",), slow=("1:0.5",))
    least: dict[tuple[str, str], float] = {}
    with open_cluster(config) as cluster:
        for _ in range(3):  # at the edges of a short look a period or a buffer more may count; not every time
            figures = list(check_cluster(cluster, seconds=0.4, attempts=1))
            for figure in figures:
                key = (figure.what, figure.where)
                least[key] = min(least.get(key, math.inf), figure.measured)
    asked = {(figure.what, figure.where): figure.asked for figure in figures}
    assert asked[BANDWIDTH, "0 to 1"] == 5e7
    assert asked[BANDWIDTH, "0 to 2"] == asked[BANDWIDTH, "2 to 0"] == 1e7
    assert (asked[CPU, "node 0"], asked[CPU, "node 1"]) == (0.4, 0.2)
    assert asked[LATENCY, "0 and 1"] is None
    assert len(figures) == 6 + 3 + 3
    for figure in figures:
        measured = least[figure.what, figure.where]
        assert measured > 0
        if figure.what in (BANDWIDTH, CPU):
            assert measured <= 1.1 * figure.asked, figure


def test_as_root_without_rights() -> None:
    """Without the rights to make namespaces, the network part goes through a user namespace by itself."""
    need(nodes=2)
    code = (
        "import subprocess\nfrom paceline.cluster import open_cluster\nfrom paceline.recipe import ClusterConfig\n"
        "with open_cluster(ClusterConfig(nodes=2)) as cluster:\n"
        "    print(cluster.layout.entry, flush=True)\n"
        "    subprocess.run(cluster.command(1, ['cat', '/proc/net/dev']), check=True)\n"
    )
    drop = ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"] if os.geteuid() == 0 else []
    try:
        done = subprocess.run(
            [*drop, sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
        )
    except FileNotFoundError:
        pytest.skip("setpriv is not installed")
    if "network namespaces or links cannot be created" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("user\n")
    assert "-1:" in done.stdout
