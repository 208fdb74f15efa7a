"""Which worker is named after a failure."""

from __future__ import annotations

import os
from typing import Any

import pytest

from paceline.launch import verdict as verdicts
from paceline.launch.base import Task
from paceline.launch.verdict import Failure, Watched, death_message, verdict
from paceline.worker_activity import Activity, Snapshot


def rank_of() -> None: ...


TASK = Task(rank_of, num_workers=4, timeout_s=5.0)
SNAPSHOT = {
    "step": 41, "stage": "backward", "operation": "all_reduce", "number": 3, "usual": 10, "total": 403,
    "is_waiting": True, "waiting_s": 4.0, "silent_s": 0.2, "unreachable": (),
}  # fmt: skip


def watched(rank: int, **changes: Any) -> Watched:
    names = set(Watched.__dataclass_fields__)
    own = {name: changes.pop(name) for name in names & changes.keys()}
    return Watched(rank=rank, activity=Snapshot(**{**SNAPSHOT, **changes}), **own)


def lost(rank: int) -> Failure:
    return Failure(rank, "comm", "lost a peer")


def test_a_stopped_worker_is_named_with_its_last_operation() -> None:
    processes = [watched(0, has_answered=True), watched(1), watched(2, is_stopped=True, location="on host beta")]
    error = verdict(TASK, [lost(0)], processes)
    assert error.rank == 2
    assert str(error) == (
        "worker 2 on host beta did not answer within 5 s: it is stopped since step 41, in all_reduce 3 of 10 "
        "(backward); it blocked worker 0"
    )


def test_a_worker_without_heartbeats_is_named_before_one_that_only_waits() -> None:
    error = verdict(TASK, [lost(0)], [watched(0, has_answered=True), watched(1), watched(2, silent_s=3.0)])
    assert "worker 2 did not answer within 5 s: it has sent no heartbeat for 3.0 s" in str(error)


def test_a_worker_that_hangs_is_the_one_that_does_not_wait() -> None:
    processes = [watched(0, has_answered=True), watched(1), watched(2, is_waiting=False), watched(3)]
    error = verdict(TASK, [lost(0)], processes)
    assert error.rank == 2
    assert "it hangs in step 41, after all_reduce 3 of 10" in str(error)


def test_of_workers_that_do_not_wait_it_is_the_one_behind() -> None:
    processes = [watched(rank, is_waiting=False, total=400 - (rank == 2)) for rank in range(4)]
    assert verdict(TASK, [], [*processes]).rank == 2


@pytest.mark.parametrize(
    ("unreachable", "rank"),
    [
        ({0: ["b"], 1: ["c"], 2: []}, 1),  # in a ring, each node sends to the next one only
        ({0: ["b"], 1: ["a", "c"], 2: ["b"]}, 1),
        ({0: ["b"], 1: ["a"]}, 1),  # between two nodes: not the one with the rendezvous
        ({0: ["b", "c"], 1: ["a"], 2: ["a"]}, 0),
    ],
)
def test_a_node_whose_network_is_cut_is_named(unreachable: dict[int, list[str]], rank: int) -> None:
    processes = [
        watched(one, address="abc"[one], unreachable=tuple(peers), has_answered=True)
        for one, peers in unreachable.items()
    ]
    error = verdict(TASK, [lost(one) for one in unreachable], processes)
    assert error.rank == rank
    assert "its node's network is interrupted" in str(error)


def test_one_that_died_is_named_before_one_that_raised() -> None:
    error = verdict(TASK, [lost(0), Failure(1, "raised", "raised"), Failure(2, "died", "died")], [])
    assert str(error) == "worker 2 died"


def test_without_any_other_evidence_the_lost_peers_are_said() -> None:
    assert str(verdict(TASK, [lost(1)], [watched(1, has_answered=True)])) == "worker 1 lost its peers: lost a peer"


def test_a_death_names_the_signal_and_the_lack_of_memory() -> None:
    snapshot = Activity().read()
    said = death_message(-9, " on host beta", snapshot, is_out_of_memory=True)
    assert said.startswith("died: its process was ended by signal 9 (SIGKILL) on host beta; last known: ")
    assert said.endswith("it probably ran out of memory: use a smaller --worker-batch-size or --micro-batch-size")
    assert "memory" not in death_message(-11, "", snapshot, is_out_of_memory=True)
    assert "ended with exit code 3; last" in death_message(3, "", snapshot, is_out_of_memory=False)
    assert "signal 40 (real-time signal)" in death_message(-40, "", snapshot, is_out_of_memory=False)


def test_what_the_kernel_says_is_read() -> None:
    assert not verdicts.is_process_stopped(os.getpid())
    assert not verdicts.is_process_stopped(1 << 30)
    assert verdicts.num_oom_kills() >= 0
