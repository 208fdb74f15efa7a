"""Workers as processes: they answer in order, are used again, and none outlives its parent or its peers' failure."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import jobs
from helpers import child_processes, ignore_event, is_alive, on_pool, python_processes, wait_until_gone
from paceline.comm import comms
from paceline.errors import UsageError, WorkerError
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.local import LocalPool
from paceline.launch.registry import choose_launcher


def pids_of(launcher: LocalPool) -> list[int]:
    return [process.popen.pid for process in launcher._processes]


def test_results_come_in_order_from_workers_that_are_used_again(pool: LocalPool) -> None:
    assert on_pool(pool, 4, jobs.rank_of) == [0, 1, 2, 3]
    first = on_pool(pool, 4, jobs.pid_of)
    assert len(set(first)) == 4
    assert os.getpid() not in first
    assert on_pool(pool, 4, jobs.pid_of) == first


def test_fewer_workers_than_the_pool_has(pool: LocalPool) -> None:
    everybody = on_pool(pool, 4, jobs.pid_of)
    assert on_pool(pool, 2, jobs.pid_of) == everybody[:2]
    assert on_pool(pool, 1, jobs.place_of, note="alone") == [[0, 1, "alone"]]
    assert on_pool(pool, 3, jobs.place_of) == [[rank, 3, ""] for rank in range(3)]


@pytest.mark.slow
def test_a_function_that_raises_names_its_rank_and_the_pool_starts_again() -> None:
    with LocalPool(2) as launcher:
        with pytest.raises(WorkerError) as caught:
            on_pool(launcher, 2, jobs.raise_on, rank=1)
        assert caught.value.rank == 1
        assert str(caught.value) == "worker 1 raised LookupError: no such shelf"
        assert "LookupError: no such shelf" in caught.value.traceback
        assert "raise_on" in caught.value.traceback
        assert child_processes() == {}
        # The next task finds new workers.
        assert on_pool(launcher, 2, jobs.rank_of) == [0, 1]
        # So it does when one died while there was nothing to do.
        victim = pids_of(launcher)[1]
        os.kill(victim, signal.SIGKILL)
        os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)  # dead with all its threads, and still the launcher's
        assert on_pool(launcher, 2, jobs.rank_of) == [0, 1]
        assert victim not in pids_of(launcher)
    assert child_processes() == {}


@pytest.mark.slow
def test_a_worker_that_is_killed_in_an_all_reduce_is_named() -> None:
    with LocalPool(3) as launcher:
        with pytest.raises(
            WorkerError, match=r"^worker 1 died: its process was ended by signal 9 \(SIGKILL\); last "
        ) as caught:
            on_pool(launcher, 3, jobs.kill_itself, rank=1)
        assert caught.value.rank == 1
        assert child_processes() == {}


@pytest.mark.slow
def test_a_worker_that_hangs_is_named_by_those_who_wait() -> None:
    with LocalPool(3) as launcher:
        with pytest.raises(
            WorkerError, match=r"^worker 2 did not answer within 8 s: it hangs in .*; it blocked worker "
        ) as caught:
            launcher.run(Task(jobs.hang_on, {"rank": 2}, num_workers=3, timeout_s=8.0), ignore_event)
        assert caught.value.rank == 2
        assert child_processes() == {}


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["torch", "shm"])
def test_a_worker_that_hangs_in_torchs_own_training_is_named(comm: str) -> None:
    # There the wait for a peer is inside backward, where no comm can translate the error.
    if comms.get(comm).unavailable():
        pytest.skip(f"comm {comm}: {comms.get(comm).unavailable()}")
    with LocalPool(2) as launcher:
        task = Task(jobs.hang_in_training, {"rank": 0, "strategy": "ddp"}, num_workers=2, comm=comm, timeout_s=8.0)
        with pytest.raises(
            WorkerError, match=r"worker 0 did not answer within 8 s: it hangs in .*; it blocked worker 1"
        ):
            launcher.run(task, ignore_event)


def test_ctrl_c_ends_all_workers() -> None:
    seen: list[int] = []

    def interrupt(event: dict[str, Any]) -> None:
        seen.append(event["pid"])
        raise KeyboardInterrupt

    with LocalPool(2) as launcher:
        with pytest.raises(KeyboardInterrupt):
            launcher.run(Task(jobs.emit_and_wait, num_workers=2), interrupt)
        assert child_processes() == {}
    assert len(seen) == 1
    assert not is_alive(seen[0])


PARENT = """
import jobs, helpers
from paceline.launch.base import Task
from paceline.launch.local import LocalPool

with LocalPool(2) as launcher:
    launcher.run(Task(jobs.emit_and_wait, num_workers=2), lambda event: print(event["pid"], flush=True))
"""


def test_killing_the_parent_leaves_no_worker() -> None:
    with python_processes(["-c", PARENT]) as [parent]:
        workers = [int(parent.stdout.readline()) for _ in range(2)]
        assert all(is_alive(pid) for pid in workers)
        parent.kill()
        parent.wait(15)
        assert wait_until_gone(workers, timeout_s=15) == []


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"num_nodes": 2, "node_rank": 2}, r"--node-rank 2 conflicts with --nnodes 2; it must be from 0 to 1"),
        ({"node_rank": 1}, r"--node-rank 1 conflicts with --nnodes 1; it must be from 0 to 0"),
        ({"num_nodes": 2, "master_port": -1}, "--master-port must be from 1 to 65535, not -1"),
        ({"num_nodes": 2, "master_port": 1}, "3 workers cannot be split evenly over 2 nodes"),
    ],
)
def test_places_that_cannot_be(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose_launcher(LaunchRequest(**asked)).open(3)
