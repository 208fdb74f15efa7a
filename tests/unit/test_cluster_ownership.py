"""Commands about clusters act on processes and networks of this user only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.cluster import running
from paceline.cluster.layout import ClusterLayout, NodeLayout
from paceline.cluster.ownership import is_own_network, is_own_process
from paceline.cluster.running import KEEPER_MODULE, living_keepers

LAYOUT = ClusterLayout(name="planted", nodes=(NodeLayout(),))


@contextmanager
def process_with(arguments: list[str], *, user: int) -> Iterator[int]:
    """A process of a user that waits, with this command line."""
    script = "import sys, time; print('ready', flush=True); time.sleep(60)"
    if user != os.geteuid():
        script = f"import os; os.setgid({user}); os.setuid({user}); {script}"
    popen = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        assert popen.stdout is not None
        assert popen.stdout.readline() == b"ready\n"
        yield popen.pid
    finally:
        popen.send_signal(signal.SIGKILL)
        popen.communicate()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")


def test_this_process_and_its_network_are_ours() -> None:
    assert is_own_process(os.getpid())
    assert is_own_network(os.getpid())


@needs_root
def test_processes_of_another_user_are_not_ours() -> None:
    with process_with([], user=65534) as pid:
        assert not is_own_process(pid)
    assert not is_own_process(pid)  # ended


@needs_root
def test_a_process_of_another_user_is_no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["-m", KEEPER_MODULE, LAYOUT.to_json()]
    text, own = "\0".join([sys.executable, *words]), running._read
    for user, expected in ((0, ["planted"]), (65534, [])):
        with process_with(words, user=user) as pid:
            monkeypatch.setattr(
                running, "_read", lambda path, pid=pid: text if path == f"/proc/{pid}/cmdline" else own(path)
            )
            assert [keeper.layout.name for keeper in living_keepers()] == expected
            monkeypatch.undo()


def test_an_argument_that_names_the_keeper_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (
        ["vi", KEEPER_MODULE, LAYOUT.to_json()],
        ["python", "-m", KEEPER_MODULE, "{}"],
        ["python", "-m", KEEPER_MODULE],
    ):
        monkeypatch.setattr(running, "_read", lambda _, words=words: "\0".join(words))
        assert running._layout_of_keeper(os.getpid()) is None
    monkeypatch.setattr(running, "_read", lambda _: "\0".join(["python", "-m", KEEPER_MODULE, LAYOUT.to_json()]))
    assert running._layout_of_keeper(os.getpid()) == LAYOUT


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("pl-lab-0", "lab"),
        ("pl-lab-br", "lab"),
        ("pl-lab-249", "lab"),
        ("pl-lab-x", ""),
        ("pl-nightly-build", ""),
        ("pl-toolongname-0", ""),
        ("pl-lab", ""),
        ("eth0", ""),
    ],
)
def test_networks_are_recognised_by_the_exact_form_of_a_name(device: str, name: str) -> None:
    assert running._cluster_of_interfaces(f"Inter-|\n face |\n{device}: 0 0\n    lo: 0 0\n") == name


def test_a_network_of_another_users_namespace_is_not_ours() -> None:
    unshare = ["unshare", "--user", "--net", "sh", "-c", "echo ready; read word"]
    popen = subprocess.Popen(
        unshare,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        user=65534 if os.geteuid() == 0 else None,
    )
    with popen:
        assert popen.stdout is not None
        is_up = popen.stdout.readline() == b"ready\n"
        found = is_own_network(popen.pid)
        popen.kill()
    if not is_up:
        pytest.skip("this machine lets no user create namespaces")
    assert found == (os.geteuid() != 0)
