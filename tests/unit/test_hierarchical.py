"""The hierarchical comm on made-up nodes: whatever the layout, it does what every comm does."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

from comm_table import ALONE, OPERATIONS, mine, run_row
from helpers import free_port, ignore_event, on_pool
from paceline.comm import Comm, CommConfig, CommError
from paceline.comm.hierarchical import HierarchicalComm
from paceline.comm.shm import ShmComm
from paceline.comm.torch import make_store
from paceline.comm.worker_placement import choose_comm
from paceline.errors import WorkerError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.train.context import Context

# The node of each worker. Uneven ones, ranks of one node that are not neighbours, one node, one worker per node.
LAYOUTS = ["aabb", "aaab", "abbb", "abab", "abba", "aaaa", "abcd", "abc", "aab", "ab"]
ACROSS = [layout for layout in LAYOUTS if len(set(layout)) > 1]


def connect(context: Context, layout: str, port: int, timeout_s: float = 20.0) -> HierarchicalComm:
    store = make_store("127.0.0.1", port, is_master=context.rank == 0, timeout_s=timeout_s)
    place = CommConfig(
        rank=context.rank,
        world_size=context.world_size,
        store=store,
        node=layout[context.rank],
        timeout_s=timeout_s,
        address="127.0.0.1",
    )
    return HierarchicalComm.connect(place)


def on_nodes(pool: LocalPool, layout: str, function: Any, **arguments: Any) -> list[Any]:
    """`function(comm, **arguments)` on workers that believe to be where the layout says."""
    return on_pool(pool, len(layout), in_layout, layout=layout, port=free_port(), job=function, inner=arguments)


def in_layout(context: Context, layout: str, port: int, job: Any, inner: dict[str, Any]) -> Any:
    comm = connect(context, layout, port)
    result = job(comm, **inner)
    comm.barrier()
    comm.close()
    context.comm.barrier()  # the store lives in worker 0
    return result


def every_row(comm: Comm, names: list[str]) -> dict[str, Any]:
    return {name: run_row(Context(comm), name) for name in names}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_operation(pool: LocalPool, layout: str) -> None:
    world_size = len(layout)
    for rank, worker in enumerate(on_nodes(pool, layout, every_row, names=list(OPERATIONS))):
        assert set(worker) == set(OPERATIONS) >= set(ALONE)
        for name, row in OPERATIONS.items():
            assert worker[name]["result"] == row.expect(rank, world_size), (name, rank)
            assert worker[name]["counted"] == row.count(rank, world_size), (name, rank)


def sums(comm: Comm, numel: int) -> dict[str, Any]:
    whole = torch.arange(numel * comm.world_size, dtype=torch.float64) * (comm.rank + 1)
    part = torch.zeros(numel, dtype=torch.float64)
    comm.reduce_scatter(part, whole)
    inside = whole.clone()
    own = inside[comm.rank * numel : (comm.rank + 1) * numel]
    comm.reduce_scatter(own, inside)
    everything = whole.clone()
    comm.all_reduce(everything)
    rest = torch.rand(numel, generator=torch.Generator().manual_seed(comm.rank))
    comm.all_reduce(rest)
    return {
        "part": part.tolist(),
        "inside": own.tolist(),
        "is_sum": torch.equal(everything, torch.arange(numel * comm.world_size) * factor(comm.world_size)),
        "bits": rest.tolist(),
    }


def factor(world_size: int) -> float:
    return world_size * (world_size + 1) / 2


@pytest.mark.each_choice
@pytest.mark.parametrize("numel", [0, 1, 7, 300_000])  # the last is longer than one piece of shared memory
@pytest.mark.parametrize("layout", ["aabb", "abba", "aaab", "abc"])
def test_sums(pool: LocalPool, layout: str, numel: int) -> None:
    world_size = len(layout)
    workers = on_nodes(pool, layout, sums, numel=numel)
    whole = torch.arange(numel * world_size, dtype=torch.float64) * factor(world_size)
    for rank, worker in enumerate(workers):
        expected = whole[rank * numel : (rank + 1) * numel].tolist()  # whole numbers below 2^53: exact in any order
        assert worker["part"] == worker["inside"] == expected
        assert worker["is_sum"]
        assert worker["bits"] == workers[0]["bits"], "every worker has the same bits"


def named_and_any(comm: Comm) -> Any:
    """Rank 0 takes some messages by name and the rest from anybody, all with one tag."""
    if comm.rank:
        for turn in range(3):
            comm.send(mine(comm.rank, turn + 1), 0, 9)
        return None
    last = comm.world_size - 1
    named = torch.zeros(6)
    comm.recv(named, last, 9)
    found = []
    for _ in range(3 * last - 1):
        received = torch.zeros(6)
        peer = comm.recv_any(received, 9)
        found.append((peer, received.tolist()))
    return named.tolist(), found


@pytest.mark.parametrize("layout", ACROSS)
def test_what_was_asked_for_by_name_is_nobody_elses(pool: LocalPool, layout: str) -> None:
    named, found = on_nodes(pool, layout, named_and_any)[0]
    last = len(layout) - 1
    assert named == mine(last, 1).tolist()
    for peer in range(1, len(layout)):
        turns = [2, 3] if peer == last else [1, 2, 3]
        assert [values for who, values in found if who == peer] == [mine(peer, turn).tolist() for turn in turns]


def most_announcements_kept(comm: HierarchicalComm, rounds: int) -> tuple[int, int]:
    """Exchange messages by name with the worker on the other node; the most entries that the listener held."""
    listener, peer = comm._listener, 1 - comm.rank
    most_arrived = most_claimed = 0
    for number in range(rounds):
        received = torch.zeros(1)
        sent = comm.isend(torch.tensor([float(number)]), peer, 9)
        comm.recv(received, peer, 9)
        sent.wait()
        assert received.item() == number
        most_arrived = max(most_arrived, len(listener._arrived))
        most_claimed = max(most_claimed, len(listener._claimed))
    return most_arrived, most_claimed


def test_announcements_that_were_claimed_are_not_kept(pool: LocalPool) -> None:
    # A peer runs at most two messages ahead of a claim, because it waits for an answer to each.
    for arrived, claimed in on_nodes(pool, "ab", most_announcements_kept, rounds=100):
        assert arrived <= 2
        assert claimed <= 1


def limit_waits(comm: HierarchicalComm, timeout_s: float) -> None:
    """Of what is waited for from here on: workers may take their time to find each other."""
    comm._local._waiter.timeout_s = timeout_s
    if comm._world is not None:
        comm._world._timeout_s = timeout_s


def wait_in_vain(context: Context, layout: str, port: int, how: str) -> str:
    comm = connect(context, layout, port)
    comm.barrier()
    limit_waits(comm, 1.0)
    message = ""
    if context.rank == 0:
        try:
            if how == "any":
                comm.recv_any(torch.zeros(1), 5)
            else:
                comm.recv(torch.zeros(1), int(how), 5)
        except CommError as error:
            message = str(error)
    context.comm.barrier()
    return message


def test_silence_names_ranks_of_the_world(pool: LocalPool) -> None:
    def hear(how: str, layout: str = "abba") -> str:
        return on_pool(pool, 4, wait_in_vain, layout=layout, port=free_port(), how=how)[0]

    assert hear("any") == "worker 0 received nothing from any worker in 1 s (the time limit)"
    assert hear("any", "abcd") == "worker 0 received nothing from any worker in 1 s (the time limit)"
    assert hear("3") == "worker 0 received nothing from worker 3 in 1 s (the time limit)"  # of the same node
    assert hear("2").startswith("worker 0: receive from worker 2 failed (time limit 1 s)")


def die(context: Context, layout: str, port: int, rank: int) -> None:
    comm = connect(context, layout, port)
    comm.barrier()
    if context.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    if context.rank == 0:
        comm.recv_any(torch.zeros(1), 5)
    comm.all_reduce(torch.zeros(1 << 18))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_dead_worker_is_named(rank: int) -> None:
    arguments = {"layout": "aabb", "port": free_port(), "rank": rank}
    task = Task(die, arguments, num_workers=4, timeout_s=20.0)
    with LocalPool(4) as launcher, pytest.raises(WorkerError, match=f"worker {rank} died") as caught:
        launcher.run(task, ignore_event)
    assert caught.value.rank == rank


def test_bytes_are_what_a_worker_hands_over() -> None:
    for op in ("send", "recv", "broadcast", "gather", "scatter", "all_reduce", "reduce_scatter", "all_gather"):
        for rank in range(4):
            assert HierarchicalComm.wire_factors(op, 0, rank, 4) == ShmComm.wire_factors(op, 0, rank, 4)


@pytest.mark.parametrize(
    ("workers", "nodes", "device", "expected"),
    [
        (4, 1, "cpu", "shm"),
        (4, 2, "cpu", "hierarchical"),
        (2, 2, "cpu", "torch"),
        (1, 1, "cpu", "torch"),
        (4, 2, "cuda", "torch"),
    ],
)
def test_auto_picks_what_suits_the_nodes(workers: int, nodes: int, device: str, expected: str) -> None:
    if ShmComm.unavailable():
        expected = "torch"
    assert choose_comm(num_workers=workers, num_nodes=nodes, device=device) == expected
