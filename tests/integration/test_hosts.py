"""Workers on hosts over a remote shell: who may speak, what must be the same there, and that nothing outlives it.

The shell here is a program that takes a host and a command, and runs the command on this host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs
import node_jobs
from command import run_command
from helpers import child_processes, ignore_event, is_alive, on_pool, python_processes, wait_until_gone
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Task
from paceline.launch.hosts import Hosts, HostsLauncher

# A login that says something first.
AGENT = """#!/bin/sh
echo "Welcome to $1"
exec sh -c "$2"
"""


@pytest.fixture
def make_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hosts]:
    agent = executable(tmp_path / "agent", AGENT)
    monkeypatch.setenv("PYTHONPATH", node_jobs.environment_for_workers()["PYTHONPATH"])

    def make(*names: str, **changes: Any) -> Hosts:
        return Hosts(names or ("alpha", "beta"), **{"ssh": str(agent), "master_addr": "127.0.0.1", **changes})

    return make


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_workers_answer_in_order_and_are_used_again(
    make_hosts: Callable[..., Hosts], capfd: pytest.CaptureFixture[str]
) -> None:
    with HostsLauncher(3, make_hosts()) as launcher:
        first = on_pool(launcher, 3, jobs.pid_of)
        assert on_pool(launcher, 3, jobs.pid_of) == first
        assert on_pool(launcher, 2, jobs.place_of, note="x") == [[0, 2, "x"], [1, 2, "x"]]
        # They work where this process works; what they print arrives, with the host's name, and not in the pipe.
        assert on_pool(launcher, 3, node_jobs.say_something) == [os.getcwd()] * 3
        with pytest.raises(WorkerError, match=r"^worker 1 raised LookupError: no such shelf$"):
            on_pool(launcher, 3, jobs.raise_on, rank=1)
        assert child_processes() == {}
        assert wait_until_gone(first) == []
        assert on_pool(launcher, 2, jobs.rank_of) == [0, 1]
    assert child_processes() == {}
    said = capfd.readouterr().err
    assert "alpha: worker 0 says hello" in said
    assert "beta: worker 2 says hello" in said


def test_hosts_are_nodes(make_hosts: Callable[..., Hosts]) -> None:
    with HostsLauncher(2, make_hosts()) as launcher, pytest.raises(WorkerError, match="joins workers of one host"):
        on_pool(launcher, 2, jobs.rank_of, comm="shm")


@pytest.mark.slow
def test_a_worker_that_dies_is_named_with_its_host(make_hosts: Callable[..., Hosts]) -> None:
    with (
        HostsLauncher(2, make_hosts()) as launcher,
        pytest.raises(WorkerError, match=r"^worker 1 died: .* signal 9 on host beta"),
    ):
        on_pool(launcher, 2, jobs.kill_itself, rank=1)


PARENT = """
import sys
import jobs
from paceline.launch.base import Task
from paceline.launch.hosts import Hosts, HostsLauncher

with HostsLauncher(2, Hosts(("alpha", "beta"), ssh=sys.argv[1], master_addr="127.0.0.1")) as launcher:
    launcher.run(Task(jobs.emit_and_wait, num_workers=2), lambda event: print(event["pid"], flush=True))
"""


@pytest.mark.slow
def test_killing_the_parent_ends_workers_on_hosts(make_hosts: Callable[..., Hosts]) -> None:
    with python_processes(["-c", PARENT, make_hosts().ssh]) as [parent]:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(pid) for pid in workers)
        parent.send_signal(signal.SIGKILL)
        parent.wait(15)
        assert wait_until_gone(workers) == []


FACTS = """#!/bin/sh
exec {python} -c '
import paceline, sys
paceline.__version__ = "9.9.9"
from paceline.launch.remote import main
main()
'
"""
IMPOSTOR = """#!/bin/sh
printf 'paceline worker 0000 {}\\n'
cat > /dev/null
"""


@pytest.mark.parametrize(
    ("script", "kind", "sentence"),
    [
        (FACTS, UsageError, r"host alpha must run the same as this one, but it has paceline 9\.9\.9, this host "),
        ("#!/bin/sh\necho No module named paceline >&2\nexit 1\n", RunError, "host alpha: No module named paceline$"),
        ("#!/bin/sh\nexit 0\n", RunError, "host alpha: it ended without a word$"),
        ("#!/bin/sh\nyes\n", RunError, "host alpha says more than a login should"),
    ],
)
def test_a_host_that_is_not_fit_is_said(
    make_hosts: Callable[..., Hosts], tmp_path: Path, script: str, kind: type[Exception], sentence: str
) -> None:
    python = executable(tmp_path / "python", script.replace("{python}", sys.executable))
    with HostsLauncher(2, make_hosts(python=str(python))) as launcher:
        with pytest.raises(kind, match=sentence):
            launcher.run(Task(jobs.rank_of, num_workers=2), ignore_event)
        assert child_processes() == {}


def test_who_does_not_know_the_token_is_not_heard(
    make_hosts: Callable[..., Hosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.launch.hosts.START_S", 3.0)
    python = executable(tmp_path / "python", IMPOSTOR)
    with (
        HostsLauncher(1, make_hosts("alpha", python=str(python))) as launcher,
        pytest.raises(RunError, match="host alpha did not answer within 3 s"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


def test_a_working_directory_that_is_not_there_is_said(
    make_hosts: Callable[..., Hosts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setattr("os.getcwd", lambda: str(folder))
    folder.rmdir()
    with (
        HostsLauncher(1, make_hosts("alpha")) as launcher,
        pytest.raises(WorkerError, match=r"working directory '.*gone' cannot be entered there.* \(on host alpha\)"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


def test_a_client_that_is_not_there_is_said(make_hosts: Callable[..., Hosts]) -> None:
    with (
        HostsLauncher(1, make_hosts("alpha", ssh="no-such-client")) as launcher,
        pytest.raises(UsageError, match="--ssh: 'no-such-client' cannot be started"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


def test_an_address_that_others_cannot_reach_is_said(make_hosts: Callable[..., Hosts]) -> None:
    with (
        HostsLauncher(2, make_hosts("localhost", "beta", master_addr="")) as launcher,
        pytest.raises(UsageError, match="host localhost is reached at localhost from here, which other hosts cannot"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=2), ignore_event)


def test_started_by_hand_it_says_what_it_is_for() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline.launch.remote"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=node_jobs.environment_for_workers(),
    )
    assert done.returncode == 1
    assert re.search("started by paceline itself: see --hosts", done.stderr)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ssh", "ssh -p 2"], "--ssh is for --hosts, which is not given"),
        (["--remote-python", "x"], "--remote-python is for --hosts, which is not given"),
        (["--hosts", "a,b", "--nnodes", "2"], "--nnodes is for hosts started by hand; give one of them"),
        (["--hosts", "a,,b"], "--hosts: '' is not the name of a host"),
        (["--hosts", "a,b", "--comm", "shm"], "it does not connect hosts, and there are 2"),
        (["--nnodes", "3"], "cannot be split evenly over 3 nodes"),
        (["--nnodes", "2", "--master-port", "99999"], "from 1 to 65535"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], sentence: str) -> None:
    said = run_command("run", *words, width=200)
    assert said.code == 2
    assert sentence in said.err
