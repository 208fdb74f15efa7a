"""Workers on emulated nodes: each in its node's network, the cluster up as long as the launcher and no longer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jobs
import node_jobs
from clusters import entered_as, need
from command import run_command
from helpers import child_processes, ignore_event, is_alive, on_pool, python_processes, wait_until_gone
from paceline.api import run
from paceline.cluster import opening
from paceline.cluster.layout import USER
from paceline.cluster.running import living_keepers
from paceline.comm import comms
from paceline.errors import UsageError, WorkerError
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.emulated import Emulated
from paceline.launch.pool import ProcessPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import ClusterConfig, Recipe
from paceline.study.entries import make_entry, settle_comm
from paceline.study.run import training_task

TWO = ClusterConfig(nodes=2)
OWN_NETWORK = os.readlink("/proc/self/ns/net") if os.path.exists("/proc/self/ns/net") else ""


@pytest.fixture(autouse=True)
def nodes_are_possible() -> None:
    need(nodes=2)


def open_nodes(num_processes: int) -> ProcessPool:
    return Emulated(LaunchRequest(cluster=TWO)).open(num_processes)


def own_clusters() -> list[str]:
    """Clusters that this process, or a child of it, has opened and that are still there."""
    pids = {os.getpid(), *child_processes()}
    return [keeper.layout.name for keeper in living_keepers() if keeper.layout.parent in pids]


def test_every_worker_is_in_its_nodes_network_and_reuses_it() -> None:
    with open_nodes(2) as launcher:
        assert len(own_clusters()) == 1
        first = on_pool(launcher, 2, node_jobs.place_of)
        assert [place["sum"] for place in first] == [2.0, 2.0]
        assert len({OWN_NETWORK, *(place["network"] for place in first)}) == 3
        # The store and the peers are reached by the node's own address, and by no other.
        assert [len(place["addresses"]) for place in first] == [1, 1]
        assert first[0]["addresses"] != first[1]["addresses"]
        again = on_pool(launcher, 2, node_jobs.place_of)
        assert [place["pid"] for place in again] == [place["pid"] for place in first]
        assert on_pool(launcher, 1, jobs.rank_of) == [0]
    assert own_clusters() == []
    assert child_processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["torch", "hierarchical"])
def test_memory_is_shared_within_a_node_alone(comm: str) -> None:
    if comms.get(comm).unavailable():
        pytest.skip(f"comm {comm}: {comms.get(comm).unavailable()}")
    with open_nodes(4) as launcher:
        places = on_pool(launcher, 4, node_jobs.place_of, comm=comm)
    networks = [place["network"] for place in places]
    assert networks[0] == networks[1] != networks[2] == networks[3]
    # Worker 0 sends to worker 1 of the same node, worker 1 to worker 2 of the other one.
    expected = ["memory", "network"] if comm == "hierarchical" else ["network", "network"]
    assert [place["medium"] for place in places[:2]] == expected


@pytest.mark.slow
def test_shared_memory_between_nodes_is_refused_and_never_chosen() -> None:
    recipe = Recipe(workers=4, cluster=TWO)
    with pytest.raises(UsageError, match="it does not connect hosts, but there are 2"):
        settle_comm(recipe.replace({"comm": "shm"}))
    assert settle_comm(recipe.replace({"comm": "auto", "workers": 2})).comm == "torch"
    assert settle_comm(recipe.replace({"comm": "auto"})).comm in ("hierarchical", "torch")
    with open_nodes(2) as launcher, pytest.raises(WorkerError, match="one host"):
        on_pool(launcher, 2, jobs.rank_of, comm="shm")


@pytest.mark.slow
def test_a_dead_worker_takes_the_cluster_along_and_the_next_task_has_a_new_one() -> None:
    with open_nodes(2) as launcher:
        name = own_clusters()
        with pytest.raises(
            WorkerError, match=r"^worker 0 died: its process was ended by signal 9 \(SIGKILL\) on emulated node 0; "
        ):
            on_pool(launcher, 2, jobs.kill_itself, rank=0)  # the one that keeps the store
        assert own_clusters() == []
        assert child_processes() == {}
        assert on_pool(launcher, 2, jobs.rank_of) == [0, 1]
        assert own_clusters() != name
    assert own_clusters() == []


@pytest.mark.slow
def test_ctrl_c_takes_everything_down() -> None:
    seen: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        seen.append(event["pid"])
        raise KeyboardInterrupt

    with open_nodes(2) as launcher:
        with pytest.raises(KeyboardInterrupt):
            launcher.run(Task(jobs.emit_and_wait, num_workers=2), interrupt)
        assert child_processes() == {}
        assert own_clusters() == []
    assert not is_alive(seen[0])


PARENT = """
import jobs
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.emulated import Emulated
from paceline.recipe import ClusterConfig

with Emulated(LaunchRequest(cluster=ClusterConfig(nodes=2))).open(2) as launcher:
    launcher.run(Task(jobs.emit_and_wait, num_workers=2), lambda event: print(event["pid"], flush=True))
"""


@pytest.mark.slow
def test_killing_the_parent_leaves_neither_worker_nor_cluster() -> None:
    with python_processes(["-c", PARENT]) as [parent]:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        keepers = [keeper.pid for keeper in living_keepers() if keeper.layout.parent == parent.pid]
        assert len(keepers) == 1
        parent.send_signal(signal.SIGKILL)
        parent.wait(15)
        assert wait_until_gone([*workers, *keepers], timeout_s=30) == []


def paceline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", *arguments],
        cwd=cwd,
        env=node_jobs.environment_for_workers(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.mark.slow
def test_run_counts_what_a_nodes_interface_carries(tmp_path: Path) -> None:
    words = ["run", "--workers", "2", "--iterations", "6", "--strategy", "ring", "--cluster", "nodes=2", "--json", "-"]
    done = paceline(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recipe"]["cluster"]["nodes"] == 2
    for row in found["results"][0]["network"]["per_worker"]:
        # Payload by the kernel's count of this worker's connections; the interface adds headers. What a peer that is
        # off its core has not taken yet, a window of some 60 kB, is not sent yet.
        assert 0 < row["comm_sent_bytes"] - 100_000 < row["kernel_sent_bytes"] < row["node_sent_bytes"]
        assert row["node_sent_bytes"] < 1.5 * row["kernel_sent_bytes"]
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "workers" / "1.jsonl").is_file()
    assert "nodes = 2" in (run / "recipe.toml").read_text()


@pytest.mark.slow
def test_compare_and_verify_on_a_cluster(tmp_path: Path) -> None:
    words = ["--workers", "2", "--iterations", "3", "--strategies", "none,ring,parameter-server"]
    done = paceline("compare", *words, "--no-report", "--cluster", "nodes=2", "--json", "s.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "s.json").read_text())["results"]
    assert [result["label"] for result in results] == ["none", "ring", "parameter-server"]
    words = ["--strategies", "ring,overlap", "--workers", "2", "--models", "lenet5", "--cluster", "nodes=2"]
    judged = paceline("verify", *words, cwd=tmp_path)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "All 2 cases meet their guarantee on comm torch." in judged.stdout


@pytest.mark.slow
def test_workers_run_in_a_user_namespace_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(opening, "examine", lambda: entered_as(USER))
    found = run("lenet5-mnist", workers=2, train__iterations=3, strategy="ring", cluster__nodes=2, out=tmp_path)
    assert len({worker["parameter_digest"] for worker in found["per_worker"]}) == 1
    assert all(row["node_sent_bytes"] > 0 for row in found["network"]["per_worker"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cluster", "nodes=2", "--nnodes", "2", "--workers", "2"], "--nnodes uses several hosts"),
        (["--cluster", "nodes=2", "--hosts", "a,b", "--workers", "2"], "use one of the two"),
        (["--cluster", "nodes=2", "--comm", "shm", "--workers", "2"], "it does not connect hosts, but there are 2"),
    ],
)
def test_what_does_not_go_together(words: list[str], sentence: str) -> None:
    said = run_command("run", *words, width=200)
    assert said.code == 2
    assert sentence in said.err
    assert child_processes() == {}


def test_a_cluster_and_torchrun_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    said = run_command("run", "--cluster", "nodes=2", width=200)
    assert said.code == 2
    assert "conflicts with torchrun" in said.err


def test_by_hand_on_several_hosts_takes_no_cluster() -> None:
    with pytest.raises(UsageError, match="--nnodes uses several hosts"):
        choose_launcher(LaunchRequest(num_nodes=2, master_port=1, cluster=TWO))


def test_a_cluster_that_cannot_be_is_said_before_anything_starts() -> None:
    launcher = choose_launcher(LaunchRequest(cluster=ClusterConfig(nodes=100_000))).open(2)
    with pytest.raises(UsageError, match="nodes"):
        launcher.__enter__()
    with pytest.raises(UsageError, match="nodes"):
        launcher.run(Task(jobs.rank_of, num_workers=2), ignore_event)
    assert child_processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize(("num_nodes", "strategy"), [(2, "all-reduce"), (3, "ring")])
def test_a_node_whose_link_is_cut_is_named(num_nodes: int, strategy: str) -> None:
    need(nodes=num_nodes)
    changes = {"workers": num_nodes, "train.batch_size": 24, "train.epochs": 200, "timeout_s": 5.0}
    recipe = Recipe().replace({**changes, "cluster.nodes": num_nodes})
    entry = make_entry(strategy, recipe)
    is_cut: list[bool] = []

    with Emulated(LaunchRequest(cluster=recipe.cluster)).open(num_nodes) as launcher:

        def cut(event: dict[str, Any]) -> None:
            if event["kind"] == "progress" and event["step"] > 5 and not is_cut:
                cluster = launcher._host._cluster
                command = ["ip", "link", "set", cluster.layout.interface(1), "down"]
                subprocess.run(cluster.command(1, command), check=True, timeout=30)
                is_cut.append(True)

        with pytest.raises(WorkerError, match="its node's network is interrupted since step ") as caught:
            launcher.run(training_task(entry.recipe(recipe), entry, None, checkpoint=""), cut)
    assert str(caught.value).startswith("worker 1 on emulated node 1 did not answer within 5 s: ")
