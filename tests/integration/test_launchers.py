"""Launchers by name, by options and by environment; a launcher of the user's own; the API's `launcher=`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import jobs
import paceline
from command import run_command
from helpers import TESTS, child_processes, on_pool
from niced import Niced
from paceline.errors import UsageError
from paceline.launch.base import LaunchRequest
from paceline.launch.by_hand import ByHand
from paceline.launch.emulated import Emulated
from paceline.launch.local import Local
from paceline.launch.registry import choose_launcher, launchers
from paceline.launch.ssh import Ssh
from paceline.launch.torchrun import Torchrun
from paceline.recipe import ClusterConfig
from toys import Plain, toy_data

NICED = f"{TESTS}/niced.py:Niced"
TWO = ClusterConfig(nodes=2)
STARTED = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
SHORT: dict[str, Any] = {"workers": 2, "train__iterations": 2, "train__batch_size": 6}


def ask(**asked: Any) -> LaunchRequest:
    return LaunchRequest(**{"environment": {}, **asked})


def test_every_launcher_is_found() -> None:
    assert list(launchers.classes) == ["by-hand", "emulated", "local", "ssh", "torchrun"]


@pytest.mark.parametrize(
    ("asked", "expected", "num_hosts", "words"),
    [
        ({}, Local, 1, ""),
        ({"launcher": "local"}, Local, 1, ""),
        ({"master_addr": "10.0.0.1", "master_port": 5}, Local, 1, ""),
        ({"cluster": TWO}, Emulated, 1, "on emulated nodes (nodes=2)"),
        ({"cluster": TWO, "launcher": "emulated"}, Emulated, 1, "on emulated nodes (nodes=2)"),
        ({"hosts": ("a", "b", "c")}, Ssh, 3, "on a, b, c"),
        ({"hosts": ("a",), "launcher": "ssh"}, Ssh, 1, "on a"),
        ({"num_nodes": 2, "node_rank": 1}, ByHand, 2, ""),
        ({"num_nodes": 2, "launcher": "by-hand"}, ByHand, 2, ""),
        ({"environment": STARTED}, Torchrun, 2, ""),
        ({"environment": STARTED, "launcher": "torchrun"}, Torchrun, 2, ""),
    ],
)
def test_a_request_means_one_launcher(asked: dict[str, Any], expected: type, num_hosts: int, words: str) -> None:
    launcher = choose_launcher(ask(**asked))
    place = launcher.describe()
    assert type(launcher) is expected
    assert (place.launcher, place.num_hosts, place.words) == (expected.name, num_hosts, words)
    assert launcher.starts_all == (expected not in (ByHand, Torchrun))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"environment": STARTED, "cluster": TWO},
            "--cluster starts workers on emulated nodes itself and conflicts with",
        ),
        (
            {"environment": STARTED, "hosts": ("a",)},
            "on hosts itself and conflicts with torchrun",
        ),
        ({"environment": STARTED, "num_nodes": 2}, "--nnodes is for hosts started by hand and conflicts with torchrun"),
        ({"hosts": ("a",), "cluster": TWO}, "--cluster emulates nodes on this host, --hosts uses real hosts"),
        ({"hosts": ("a",), "num_nodes": 2}, "--hosts starts all hosts from here, --nnodes is for hosts started by"),
        ({"cluster": TWO, "num_nodes": 2}, "--cluster emulates nodes on this host, --nnodes uses several hosts"),
        (
            {"launcher": "local", "hosts": ("a",)},
            "--launcher local conflicts with --hosts, which selects launcher ssh",
        ),
        ({"launcher": "ssh", "cluster": TWO}, "--launcher ssh conflicts with --cluster, which selects launcher emul"),
        ({"launcher": "local", "environment": STARTED}, "--launcher local conflicts with torchrun, which selects"),
        ({"launcher": NICED, "num_nodes": 2}, "niced.py:Niced conflicts with --nnodes, which selects launcher by-han"),
        ({"launcher": "ssh"}, "--launcher ssh needs --hosts"),
        ({"launcher": "emulated"}, "--launcher emulated needs nodes to emulate"),
        ({"launcher": "by-hand"}, "--launcher by-hand needs --nnodes"),
        ({"launcher": "torchrun"}, "--launcher torchrun needs RANK and WORLD_SIZE"),
        ({"launcher": "slrum"}, "unknown launcher 'slrum'; known: by-hand, emulated, local, ssh, torchrun"),
        ({"launcher": "paceline.codecs.cast:Fp16"}, "is not a Launcher class"),
        ({"launcher": NICED, "environment": {"NICENESS": "low"}}, "NICENESS is 'low', not a whole number"),
    ],
)
def test_requests_that_contradict_themselves(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_launcher(ask(**asked))
    assert sentence in str(caught.value)


def test_launchers_that_know_nothing_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(launchers.classes, "niced", Niced)
    assert type(choose_launcher(ask(environment={"NICENESS": "3"}))) is Niced
    with pytest.raises(UsageError, match="--hosts selects launcher ssh, NICENESS launcher niced; use one of the"):
        choose_launcher(ask(hosts=("a",), environment={"NICENESS": "3"}))


def test_a_launcher_of_the_users_own_runs_tasks() -> None:
    with choose_launcher(ask(launcher=NICED)).open(2) as pool:
        assert on_pool(pool, 2, jobs.place_of, note="x") == [[0, 2, "x"], [1, 2, "x"]]
        assert on_pool(pool, 2, jobs.niceness) == [7, 7]
    assert child_processes() == {}


def test_a_launcher_of_the_users_own_is_chosen_with_an_option(tmp_path: Path) -> None:
    words = ["--workers", "2", "--iterations", "2", "--strategy", "ring", "--out", str(tmp_path), "--launcher", NICED]
    said = run_command("run", *words, "--json", str(tmp_path / "r.json"), width=200)
    assert said.code == 0, said.err
    assert "comm torch (gloo), with niceness 7" in said.out
    [result] = json.loads((tmp_path / "r.json").read_text())["results"]
    assert result["replicas_equal"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--launcher", "ssh"], "--launcher ssh needs --hosts"),
        (["compare", "--launcher", "local", "--hosts", "a,b"], "conflicts with --hosts"),
        (["scale", "--launcher", "nope"], "unknown launcher 'nope'"),
        (["sweep", "--vary", "lr=0.1", "--launcher", "emulated"], "needs nodes to emulate"),
        (
            ["tune", "--launcher", "by-hand", "--nnodes", "2"],
            "tune starts all workers itself: run it in one process without --nn",
        ),
        (["verify", "--nnodes", "2"], "verify starts all workers itself: run it in one process without --nnodes;"),
        (["bench", "--launcher", "torchrun"], "needs RANK and WORLD_SIZE"),
    ],
)
def test_the_option_is_on_every_command_that_trains(words: list[str], sentence: str) -> None:
    said = run_command(*words, width=200)
    assert (said.code, sentence in " ".join(said.err.split())) == (2, True), said.err


def test_the_api_takes_a_launcher(tmp_path: Path) -> None:
    for launcher in (NICED, Niced(ask())):
        found = paceline.run("lenet5-mnist", strategy="ring", out=tmp_path, launcher=launcher, **SHORT)
        assert found["replicas_equal"]
    request = LaunchRequest(launcher="local", environment={})
    study = paceline.compare("lenet5-mnist", strategies=["ring"], out=tmp_path, launcher=request, **SHORT)
    assert [row["strategy"] for row in study.rows] == ["ring"]


def test_the_api_takes_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = tmp_path / "ssh-agent"
    agent.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    agent.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent / "src"))
    request = LaunchRequest(hosts=("alpha", "beta"), ssh=str(agent), master_addr="127.0.0.1", environment={})
    found = paceline.run("lenet5-mnist", strategy="ring", out=tmp_path / "runs", launcher=request, **SHORT)
    assert found["replicas_equal"]
    data = toy_data(samples=30).train
    with pytest.raises(UsageError, match="passed as objects cannot be sent to workers on other hosts"):
        paceline.compare(Plain().double(), (data.inputs, data.targets), strategies=["ring"], launcher=request, **SHORT)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"launcher": "ssh"}, "--launcher ssh needs --hosts"),
        ({"hosts": "a,-b"}, "'-b' is not the name of a host"),
        ({"launcher": "local", "hosts": ["a"]}, "conflicts with --hosts"),
        ({"launcher": ask(hosts=("a",)), "hosts": ["a"]}, "hosts= conflicts with the request passed as launcher="),
        ({"launcher": Local(ask()), "hosts": ["a"]}, "hosts= conflicts with the local launcher"),
        ({"launcher": Local(ask()), "cluster__nodes": 2}, r"the recipe emulates nodes \(nodes=2\), but the local"),
        ({"launcher": ask(num_nodes=2)}, "launcher 'by-hand' runs this program in several processes"),
        ({"hosts": ["a", "b"], "comm": "shm"}, "it does not connect hosts, but there are 2"),
    ],
)
@pytest.mark.parametrize("study", [paceline.run, paceline.compare, paceline.scale, paceline.tune])
def test_what_the_api_refuses(study: Any, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        study("lenet5-mnist", **asked)


def test_a_sweep_takes_a_launcher(tmp_path: Path) -> None:
    found = paceline.sweep("lenet5-mnist", vary={"lr": [0.01]}, out=tmp_path, launcher=NICED, **SHORT)
    assert [row["optimizer.lr"] for row in found.rows] == [0.01]
    with pytest.raises(UsageError, match="needs --hosts"):
        paceline.sweep("lenet5-mnist", vary={"lr": [0.01]}, out=tmp_path, launcher="ssh")
