"""Accidents on shared memory: who is gone or silent is named, nothing is left behind, nobody else gets in."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jobs
from helpers import TESTS, Meeting, on_pool, python_processes
from paceline.comm.shm import ShmComm
from paceline.comm.shm_memory import Segment
from paceline.errors import RunError, WorkerError
from paceline.launch.local import LocalPool
from shm_faults import SCENES, VICTIM

KILLED = [name for name in SCENES if name.startswith("killed")]
STOPPED = [name for name in SCENES if name.startswith("stopped")]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the workers of all scenes had to say."""
    folder = tmp_path_factory.mktemp("scenes")
    with python_processes([str(TESTS / "shm_faults.py"), str(folder)]) as [process]:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        yield json.loads(out)


@pytest.mark.parametrize("name", KILLED)
def test_a_worker_that_is_killed_is_named_by_all_that_wait(said: dict[str, Any], name: str) -> None:
    assert said[name][VICTIM] is None
    for rank in (0, 1):
        # By its end, not by the time limit: that would be another sentence.
        assert said[name][rank]["error"] == f"worker {rank} lost worker {VICTIM}: its process is gone"


@pytest.mark.parametrize("name", STOPPED)
def test_a_worker_that_stops_is_named_at_the_time_limit_by_peers_that_slept(said: dict[str, Any], name: str) -> None:
    assert said[name][VICTIM] is None
    for rank in (0, 1):
        worker = said[name][rank]
        assert worker["error"] == f"worker {rank} received nothing from worker {VICTIM} in 2 s (the time limit)"
        assert worker["waited_s"] >= 2.0
        assert worker["cpu_share"] < 0.5


def test_no_file_stays_open_or_visible(said: dict[str, Any]) -> None:
    for worker in said["look around"]:
        # The comm's own, a reduction, and a common memory; what is no longer used is no longer mapped.
        assert worker["result"] == {"files": [], "num_mapped": 3, "num_after_closing": 1}
    assert said["left in /dev/shm"] == []


def test_memory_outlives_the_worker_that_made_it(said: dict[str, Any]) -> None:
    assert [worker.get("result") for worker in said["leave early"]] == [6.0, 6.0, 6.0]


def test_another_user_gets_nothing(said: dict[str, Any]) -> None:
    if said["another user"] is None:
        pytest.skip("only root can become another user")
    pid, sentence = said["another user"]["pid"], said["another user"]["said"]
    assert sentence.startswith(f"shared memory of process {pid} cannot be opened (Permission denied): workers on comm")


@pytest.mark.slow
def test_the_launcher_names_the_worker_that_was_killed() -> None:
    with LocalPool(3) as launcher:
        with pytest.raises(
            WorkerError, match=r"^worker 1 died: its process was ended by signal 9 \(SIGKILL\); "
        ) as caught:
            on_pool(launcher, 3, jobs.kill_itself, comm="shm", rank=1)
        assert caught.value.rank == 1


# Who may come in.


def test_a_segment_is_the_users_own_and_needs_the_token() -> None:
    segment = Segment.create(100)
    assert stat.S_IMODE(os.fstat(segment._fd).st_mode) == 0o600
    same = Segment.attach(segment.address)
    same.tensor(0, 4, torch.int32).fill_(7)
    assert segment.tensor(0, 4, torch.int32).tolist() == [7] * 4
    pid, fd, token = segment.address.split(":")
    wrong = f"{pid}:{fd}:{'0' * len(token)}"
    with pytest.raises(RunError, match=f"process {pid} does not belong to this run"):
        Segment.attach(wrong)
    segment.close_file()
    with pytest.raises(RunError, match=f"process {pid} cannot be opened"):
        Segment.attach(f"{pid}:{fd}:{token}")
    assert segment.tensor(0, 4, torch.int32).tolist() == [7] * 4


def test_a_file_that_is_no_segment_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"short", b"x" * 10_000):
        path = tmp_path / "file"
        path.write_bytes(content)
        gc.collect()  # files of tests before this one
        before = set(os.listdir("/proc/self/fd"))
        with path.open("r+b") as file, pytest.raises(RunError, match="does not belong to this run"):
            Segment.attach(f"{os.getpid()}:{file.fileno()}:{'ab' * 32}")
        assert set(os.listdir("/proc/self/fd")) <= before


def _raw_memfd(name: str, *, seals: int, nbytes: int = 10_000, token: bytes = b"\xab" * 32) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    os.pwrite(fd, token, 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.mark.parametrize(
    ("name", "seals", "nbytes"),
    [
        ("other", ALL_SEALS, 10_000),  # a memfd of another program
        ("paceline", 0, 10_000),  # its creator could cut it short while it is mapped
        ("paceline", fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL, 10_000),
        ("paceline", ALL_SEALS, 4096),  # nothing after the header
    ],
)
def test_a_memfd_that_is_no_segment_is_refused(name: str, seals: int, nbytes: int) -> None:
    fd = _raw_memfd(name, seals=seals, nbytes=nbytes)
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(RunError, match="does not belong to this run"):
        Segment.attach(f"{os.getpid()}:{fd}:{'ab' * 32}")
    assert set(os.listdir("/proc/self/fd")) <= before
    assert os.pread(fd, 64, 0) == b"\xab" * 32 + bytes(32)
    os.close(fd)


def test_the_size_of_a_segment_cannot_change() -> None:
    segment = Segment.create(100)
    for nbytes in (0, 100_000):
        with pytest.raises(PermissionError):
            os.ftruncate(segment._fd, nbytes)
    segment.close_file()


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_other_kinds_of_files_are_not_opened(tmp_path: Path, kind: str) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    path, flags = {
        "pipe": (fifo, os.O_RDWR),
        "folder": (tmp_path, os.O_RDONLY),
        "device": (Path("/dev/zero"), os.O_RDWR),
    }[kind]
    fd = os.open(path, flags)
    try:
        with pytest.raises(RunError, match="does not belong to this run"):
            Segment.attach(f"{os.getpid()}:{fd}:{'ab' * 32}")
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "address",
    [
        "1:../../x:" + "ab" * 32,
        "self:3:" + "ab" * 32,
        "1/../self:3:" + "ab" * 32,
        "-1:3:" + "ab" * 32,
        "1:-3:" + "ab" * 32,
        "+1:3:" + "ab" * 32,
        " 1:3:" + "ab" * 32,
        "\u0661:3:" + "ab" * 32,  # a digit, but not an ASCII one
        "1_0:3:" + "ab" * 32,
        "9" * 5000 + ":3:" + "ab" * 32,
        "1:" + "9" * 20 + ":" + "ab" * 32,
        "1:3:" + "ab" * 31,
        "1:3:" + "AB" * 32,
        "1:3:" + "ab" * 32 + "\n",
        "/etc/passwd",
        "1:3",
        "::",
        "",
    ],
)
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(RunError, match="is not the address of shared memory; start the run again"):
        Segment.attach(address)


def test_a_process_that_is_gone_is_said_to_be() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(RunError, match=f"process {process.pid} cannot be opened .No such file or directory.: workers"):
        Segment.attach(f"{process.pid}:3:{'ab' * 32}")


def test_workers_of_another_host_are_refused_by_name() -> None:
    store = Meeting()
    store.set("shm/node", "0")
    with pytest.raises(RunError, match="worker 1 is not on the host of worker 0; use comm hierarchical or torch"):
        ShmComm(1, 2, store, node="1")


def test_where_it_cannot_be_used_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ShmComm.unavailable() == ""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert ShmComm.unavailable() == "it needs an x86-64 processor, and this is aarch64"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ShmComm.unavailable() == "it needs Linux"
