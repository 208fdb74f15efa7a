"""`paceline cluster` as a user types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import is_gone, need, started, wait_for
from helpers import REPOSITORY
from paceline.cluster.running import Keeper, living_keepers, processes_inside


def paceline(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline", "cluster", *arguments],
        env={**os.environ, "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def kept() -> Iterator[str]:
    """A cluster that `up` made; the command itself has ended."""
    need(nodes=2, bandwidth="100mbit")
    name = f"t{os.getpid() % 10**6}"
    done = paceline("up", "nodes=2,bandwidth=100mbit", "--name", name)
    assert done.returncode == 0, done.stderr
    assert f"Cluster {name} is up: nodes 0 to 1" in done.stdout
    yield name
    if not is_gone(name):
        assert paceline("down", name).returncode == 0
    assert is_gone(name)


def test_from_up_to_down(kept: str) -> None:
    listed = json.loads(paceline("list", "--json", "-").stdout)["clusters"]
    mine = next(one for one in listed if one["name"] == kept)
    assert (mine["asked"], mine["is_ready"], mine["parent"]) == ("nodes=2,bandwidth=100mbit", True, None)
    assert kept in paceline("list").stdout
    done = paceline("exec", kept, "1", "--", "sh", "-c", "cat /proc/net/dev; exit 7")
    assert done.returncode == 7
    assert f"pl-{kept}-1:" in done.stdout
    with started([sys.executable, "-m", "paceline", "cluster", "exec", kept, "0", "sleep", "99"]) as popen:
        wait_for(lambda: popen.pid in processes_inside(kept), "the process is inside")
        done = paceline("down", kept)
        assert (done.returncode, done.stdout) == (0, f"Cluster {kept} is down.\n")
        assert popen.wait(20) == -signal.SIGTERM
    assert is_gone(kept)


@pytest.mark.slow
def test_a_kept_cluster_is_checked(kept: str, tmp_path: Path) -> None:
    target = tmp_path / "check.json"
    done = paceline("check", kept, "--seconds", "0.3", "--json", str(target))
    found = json.loads(target.read_text())
    assert (found["name"], found["asked"]) == (kept, "nodes=2,bandwidth=100mbit")
    assert [figure["what"] for figure in found["figures"]] == ["bandwidth", "bandwidth", "latency"]
    assert done.returncode == (0 if found["passed"] else 1)
    assert done.stdout.count("bandwidth  ") == 2
    assert not is_gone(kept)


@pytest.mark.slow
def test_prune_leaves_a_kept_cluster_alone(kept: str) -> None:
    assert paceline("prune").returncode == 0
    assert not is_gone(kept)


def test_mistakes() -> None:
    need(nodes=2)
    for arguments, sentence in (
        (["exec", "nobody", "0", "true"], "'nobody'"),
        (["down"], "give either names of clusters or --all"),
        (["down", "nobody"], "nobody"),
        (["up", "nodes=2,cpu=1"], "unknown key in --cluster 'cpu'; did you mean 'cpus'?"),
        (["check", "nobody"], "nobody"),
    ):
        done = paceline(*arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr, arguments


def test_ctrl_c_during_a_check_takes_the_cluster_down() -> None:
    need(nodes=2)
    command = [sys.executable, "-m", "paceline", "cluster", "check", "nodes=2", "--seconds", "30"]
    with started(command) as popen:

        def mine() -> list[Keeper]:
            return [one for one in living_keepers() if one.layout.parent == popen.pid and one.is_ready]

        wait_for(lambda: bool(mine()), "the cluster is there")
        keeper = mine()[0]
        wait_for(lambda: bool(processes_inside(keeper.layout.name, excluding=keeper.pid)), "it measures")
        popen.send_signal(signal.SIGINT)
        _, error = popen.communicate(timeout=150)
        assert popen.returncode == 1, error
        assert "interrupted: the cluster was removed" in error
        assert is_gone(keeper.layout.name)


@pytest.mark.slow
def test_the_proof_of_cleaning_up() -> None:
    need(nodes=2, cpus=0.5)
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "cleanup.py"), "--kills", "3", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills: nothing is left" in done.stdout
