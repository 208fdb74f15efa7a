"""Workers on hosts over a remote shell: the handshake, version checks, hostile messages and clean-up.

The shell here is a program that takes a host and a command, and runs the command on this host.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import struct
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
from paceline.launch import messages
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.pool import ProcessPool
from paceline.launch.registry import choose_launcher

# A login that prints a line before the command runs.
AGENT = """#!/bin/sh
echo "Welcome to $1"
exec sh -c "$2"
"""
# A worker that also runs functions of the tests.
PERMISSIVE = f"""#!/bin/sh
exec {sys.executable} -c '
from paceline.launch import messages, remote_worker
messages.TASK_PACKAGES += ["jobs", "node_jobs"]
remote_worker.main()
'
"""

OpenHosts = Callable[..., ProcessPool]


@pytest.fixture
def open_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenHosts:
    agent = executable(tmp_path / "agent", AGENT)
    python = executable(tmp_path / "permissive", PERMISSIVE)
    monkeypatch.setenv("PYTHONPATH", node_jobs.environment_for_workers()["PYTHONPATH"])
    monkeypatch.setattr(messages, "TASK_PACKAGES", ["paceline", "jobs", "node_jobs"])

    def open_them(num_processes: int, *names: str, **changes: Any) -> Any:
        usual = {"ssh": str(agent), "remote_python": str(python), "master_addr": "127.0.0.1"}
        request = LaunchRequest(hosts=names or ("alpha", "beta"), **{**usual, **changes})
        return choose_launcher(request).open(num_processes)

    return open_them


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_workers_answer_in_order_and_are_used_again(open_hosts: OpenHosts, capfd: pytest.CaptureFixture[str]) -> None:
    with open_hosts(3) as launcher:
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


def test_hosts_are_nodes(open_hosts: OpenHosts) -> None:
    with open_hosts(2) as launcher, pytest.raises(WorkerError, match="connects workers of one host"):
        on_pool(launcher, 2, jobs.rank_of, comm="shm")


@pytest.mark.slow
def test_a_worker_that_is_stopped_on_another_host_is_named(open_hosts: OpenHosts) -> None:
    # The ssh client runs on; only heartbeats are missing.
    sentence = r"^worker 1 on host beta did not answer within 5 s: it has sent no heartbeat for .* it blocked worker 0$"
    with open_hosts(2) as launcher, pytest.raises(WorkerError, match=sentence):
        launcher.run(Task(jobs.stop_on, {"rank": 1}, num_workers=2, timeout_s=5.0), ignore_event)
    assert child_processes() == {}


@pytest.mark.slow
def test_a_worker_that_dies_is_named_with_its_host(open_hosts: OpenHosts) -> None:
    with (
        open_hosts(2) as launcher,
        pytest.raises(WorkerError, match=r"^worker 1 died: .* signal 9 \(SIGKILL\) on host beta"),
    ):
        on_pool(launcher, 2, jobs.kill_itself, rank=1)


PARENT = """
import sys
import jobs
from paceline.launch import messages
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.ssh import Ssh

messages.TASK_PACKAGES += ["jobs"]
request = LaunchRequest(hosts=("alpha", "beta"), ssh=sys.argv[1], remote_python=sys.argv[2], master_addr="127.0.0.1")
with Ssh(request).open(2) as launcher:
    launcher.run(Task(jobs.emit_and_wait, num_workers=2), lambda event: print(event["pid"], flush=True))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("open_hosts")
def test_killing_the_parent_ends_workers_on_hosts(tmp_path: Path) -> None:
    with python_processes(["-c", PARENT, str(tmp_path / "agent"), str(tmp_path / "permissive")]) as [parent]:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(pid) for pid in workers)
        parent.send_signal(signal.SIGKILL)
        parent.wait(15)
        assert wait_until_gone(workers) == []


FACTS = """#!/bin/sh
exec {python} -c '
import paceline, sys
paceline.__version__ = "9.9.9"
from paceline.launch.remote_worker import main
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
        (
            FACTS,
            UsageError,
            r"host alpha must have the same versions as this one, but it has paceline 9\.9\.9",
        ),
        ("#!/bin/sh\necho No module named paceline >&2\nexit 1\n", RunError, "host alpha: No module named paceline$"),
        ("#!/bin/sh\nexit 0\n", RunError, "host alpha: it ended without a message$"),
        ("#!/bin/sh\nyes\n", RunError, "host alpha printed more than 64 KiB at login"),
    ],
)
def test_a_host_that_is_not_fit_is_said(
    open_hosts: OpenHosts, tmp_path: Path, script: str, kind: type[Exception], sentence: str
) -> None:
    python = executable(tmp_path / "python", script.replace("{python}", sys.executable))
    with open_hosts(2, remote_python=str(python)) as launcher:
        with pytest.raises(kind, match=sentence):
            launcher.run(Task(jobs.rank_of, num_workers=2), ignore_event)
        assert child_processes() == {}


def test_who_does_not_know_the_token_is_not_heard(
    open_hosts: OpenHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.launch.ssh.START_S", 3.0)
    python = executable(tmp_path / "python", IMPOSTOR)
    with (
        open_hosts(1, "alpha", remote_python=str(python)) as launcher,
        pytest.raises(RunError, match="host alpha did not answer within 3 s"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


# A host that answers as a worker does, and then sends whatever it was told to.
HOSTILE = """
import json, os, sys
from paceline.launch.remote_worker import MARK, _read_line
from paceline.launch.remote_worker import own_facts

token = _read_line(0)
os.write(1, f"{MARK} {token} {json.dumps(own_facts())}\\n".encode())
os.write(1, bytes.fromhex(sys.argv[1]))
os.read(0, 1 << 16)
os.read(0, 1 << 16)
"""


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def framed(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("pickle", r"^worker 0 could not start: sent a message that cannot be decoded \(.+\) \(on host alpha\)$"),
        ("late pickle", r"^worker 0 sent a message that cannot be decoded \(.+\) \(on host alpha\)$"),
        ("oversized", r"^worker 0 could not start: sent a message of more than 256 MiB \(on host alpha\)$"),
        ("malformed", r"^worker 0 could not start: sent a message that cannot be decoded \(.+\) \(on host alpha\)$"),
        ("out of turn", r"^worker 0 could not start: it sent an unexpected message \(on host alpha\)$"),
        ("outside", r"sent the file '\.\./proof', which is outside the run's folder$"),
    ],
)
def test_a_hostile_host_cannot_run_code_here(open_hosts: OpenHosts, tmp_path: Path, what: str, sentence: str) -> None:
    bomb = framed(pickle.dumps(Bomb(tmp_path / "proof")))
    begin = framed(messages.encode(messages.Ready())) + framed(messages.encode(messages.StoreOpened(1)))
    piece = messages.FilePiece("../proof", b"", is_first=True)
    data = {
        "pickle": bomb,
        "late pickle": begin + bomb,
        "oversized": struct.pack("!iQ", -1, 1 << 40),
        "malformed": framed(b"\xdd\xff\xff\xff\xff"),
        "out of turn": framed(messages.encode(messages.Done(1))),
        "outside": begin + framed(messages.encode(piece)),
    }[what]
    (tmp_path / "hostile.py").write_text(HOSTILE)
    script = f"#!/bin/sh\nexec {sys.executable} {tmp_path}/hostile.py {data.hex()}\n"
    python = executable(tmp_path / "python", script)
    (tmp_path / "run").mkdir()
    task = Task(jobs.rank_of, {"folder": str(tmp_path / "run")}, num_workers=1)
    with (
        open_hosts(1, "alpha", remote_python=str(python)) as launcher,
        pytest.raises(RunError, match=sentence),
    ):
        launcher.run(task, ignore_event)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("order", ["pickle", "task"])
def test_a_worker_loads_no_pickle_and_runs_no_foreign_function(tmp_path: Path, order: str) -> None:
    proof = tmp_path / "proof"
    enter = framed(messages.encode(messages.Enter(str(tmp_path), [])))
    foreign = {"type": "task", "function": "pathlib:Path.touch", "serve": None, "arguments": {}, "comm": "torch"}
    foreign |= {"num_workers": 1, "num_servers": 0, "device": "cpu", "threads": 1, "timeout_s": 1.0, "rank": 0}
    foreign |= {"local_rank": 0, "node": "0", "job": 1, "master": ["127.0.0.1", 1], "address": "", "secret": bytes(32)}
    bomb = framed(pickle.dumps(Bomb(proof)))
    sent = bomb if order == "pickle" else enter + framed(messages.encode(foreign))
    worker = subprocess.Popen(
        [sys.executable, "-m", "paceline.launch.remote_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=node_jobs.environment_for_workers(),
    )
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdin.write(b"token\n" + sent)
        worker.stdin.flush()  # and stays open: a worker whose pipe is closed leaves without a word
        said = worker.stdout.read()
        err = worker.stderr.read().decode()
    assert worker.returncode == 1
    if order == "pickle":
        assert "the launcher sent a message that cannot be decoded" in err
    else:
        assert b"received an order to run 'pathlib:Path.touch', which is not a function of paceline" in said
    assert not proof.exists()


def test_objects_are_not_sent_to_hosts(open_hosts: OpenHosts) -> None:
    with pytest.raises(UsageError, match="passed as objects cannot be sent to workers on other hosts"):
        open_hosts(1, "alpha").set_objects(b"pickled")


def test_a_working_directory_that_is_not_there_is_said(
    open_hosts: OpenHosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setattr("os.getcwd", lambda: str(folder))
    folder.rmdir()
    with (
        open_hosts(1, "alpha") as launcher,
        pytest.raises(WorkerError, match=r"working directory '.*gone' cannot be opened there.* \(on host alpha\)"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


def test_a_client_that_is_not_there_is_said(open_hosts: OpenHosts) -> None:
    with (
        open_hosts(1, "alpha", ssh="no-such-client") as launcher,
        pytest.raises(UsageError, match="--ssh: 'no-such-client' cannot be started"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=1), ignore_event)


def test_an_address_that_others_cannot_reach_is_said(open_hosts: OpenHosts) -> None:
    with (
        open_hosts(2, "localhost", "beta", master_addr="") as launcher,
        pytest.raises(UsageError, match="host localhost reports the address localhost, which other hosts cannot"),
    ):
        launcher.run(Task(jobs.rank_of, num_workers=2), ignore_event)


def test_started_by_hand_it_says_what_it_is_for() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paceline.launch.remote_worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env=node_jobs.environment_for_workers(),
    )
    assert done.returncode == 1
    assert re.search("started by paceline itself: use --hosts", done.stderr)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--ssh", "ssh -p 2"], "--ssh needs --hosts, which is not given"),
        (["--remote-python", "x"], "--remote-python needs --hosts, which is not given"),
        (["--hosts", "a,b", "--nnodes", "2"], "--nnodes is for hosts started by hand; use one of the two"),
        (["--hosts", "a,,b"], "--hosts: '' is not the name of a host"),
        (["--hosts", "a,b", "--comm", "shm"], "it does not connect hosts, but there are 2"),
        (["--nnodes", "3"], "cannot be split evenly over 3 nodes"),
        (["--nnodes", "2", "--master-port", "99999"], "from 1 to 65535"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], sentence: str) -> None:
    said = run_command("run", *words, width=200)
    assert said.code == 2
    assert sentence in said.err
