"""Every comm does the same operations to the same results, counts them, and says what they put on the wire."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from comm_table import ALONE, LENGTH, NBYTES, OPERATIONS, run_row
from helpers import on_pool, on_threads
from paceline.codecs import TensorSpec
from paceline.comm import CommError, Counter, Operation, comms
from paceline.comm.threads import ThreadsComm
from paceline.comm.torch import TorchComm
from paceline.launch.local import LocalPool
from paceline.strategies import StrategySpec
from paceline.train.context import Context


def run_everywhere(pool: LocalPool, comm: str, world_size: int, function: Any, **arguments: Any) -> list[Any]:
    if comm == "threads":
        return on_threads(world_size, function, **arguments)
    return on_pool(pool, world_size, function, comm=comm, **arguments)


READ_IN_PLACE = {"hierarchical", "shm"}  # what is written once may be read by many


def test_the_comms_are_known() -> None:
    assert set(comms.classes) == {"hierarchical", "shm", "threads", "torch"}


@pytest.mark.pairwise
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("comm", list(comms.classes))
def test_operation(pool: LocalPool, comm: str, name: str, world_size: int) -> None:
    if world_size == 1 and name not in ALONE:
        world_size = 2  # a message needs somebody to go to
    workers = run_everywhere(pool, comm, world_size, run_row, name=name)
    row = OPERATIONS[name]
    for rank, worker in enumerate(workers):
        assert worker["result"] == row.expect(rank, world_size)
        assert worker["counted"] == row.count(rank, world_size)
        counter = Counter(nbytes={key: nbytes for key, (nbytes, _) in worker["counted"].items()})
        assert worker["wire"] == tuple(comms.classes[comm].predict(counter, rank, world_size))
    sent, received = (sum(worker["wire"][way] for worker in workers) for way in (0, 1))
    if comm in READ_IN_PLACE:
        assert sent <= received
    else:
        assert sent == received  # nothing is lost between workers


@pytest.mark.parametrize("world_size", range(1, 9))
@pytest.mark.parametrize("comm", [name for name in comms.classes if name not in READ_IN_PLACE])
def test_wire_factors_add_up(comm: str, world_size: int) -> None:
    others = world_size - 1
    # What an operation of one byte puts on the wire, over all workers.
    moved = {"broadcast": others, "gather": others, "scatter": others, "all_gather": others * world_size}
    moved["all_reduce"] = 2 * others
    for op, expected in moved.items():
        for root in range(world_size) if op in ("broadcast", "gather", "scatter") else [None]:
            factors = [comms.classes[comm].wire_factors(op, root, rank, world_size) for rank in range(world_size)]
            assert sum(sent for sent, _ in factors) == pytest.approx(expected)
            assert sum(received for _, received in factors) == pytest.approx(expected)


def test_wire_factors_by_hand() -> None:
    # Four workers on torch: a ring for all_reduce, a binomial tree for broadcast.
    assert [TorchComm.wire_factors("all_reduce", None, rank, 4) for rank in range(4)] == [(1.5, 1.5)] * 4
    assert [TorchComm.wire_factors("broadcast", 0, rank, 4) for rank in range(4)] == [(2, 0), (1, 1), (0, 1), (0, 1)]
    assert [TorchComm.wire_factors("broadcast", 3, rank, 4) for rank in range(4)] == [(1, 1), (0, 1), (0, 1), (2, 0)]
    # On threads all of it meets at one worker.
    assert [ThreadsComm.wire_factors("all_reduce", None, rank, 3) for rank in range(3)] == [(2, 2), (1, 1), (1, 1)]
    assert ThreadsComm.wire_factors("gather", 1, 1, 3) == (0, 2)
    assert ThreadsComm.wire_factors("scatter", 1, 0, 3) == (0, 1)
    assert ThreadsComm.wire_factors("send", 2, 0, 3) == (1, 0)


def test_an_operation_that_is_not_one_is_refused() -> None:
    with pytest.raises(KeyError):
        ThreadsComm.wire_factors("reduce_all", None, 0, 2)


def test_counter_adds_by_kind_and_peer() -> None:
    operations = [Operation("send", 8, 1), Operation("send", 4, 1), Operation("send", 4, 2), Operation("all_reduce", 3)]
    counter = Counter.of(operations)
    assert counter.nbytes == {("send", 1): 12, ("send", 2): 4, ("all_reduce", None): 3}
    assert counter.calls == {("send", 1): 2, ("send", 2): 1, ("all_reduce", None): 1}
    assert ThreadsComm.predict(counter, 0, 3) == (12 + 4 + 2 * 3, 2 * 3)
    counter.clear()
    assert counter == Counter()


def receive_nothing(context: Context) -> str:
    try:
        context.comm.recv(torch.zeros(LENGTH), 1)
    except CommError as error:
        return str(error)
    return ""


def test_silence_becomes_an_error_that_names_the_peer() -> None:
    comm = ThreadsComm.world(2, timeout_s=0.05)[0]
    assert receive_nothing(Context(comm)) == "worker 0 received nothing from [1] in 0.05 s"
    with pytest.raises(CommError, match="received nothing"):
        comm.recv_any(torch.zeros(1))


def test_a_message_on_threads_is_a_copy() -> None:
    first, second = ThreadsComm.world(2)
    tensor = torch.ones(LENGTH)
    first.send(tensor, 1)
    tensor.zero_()
    received = torch.zeros(LENGTH)
    second.recv(received, 0)
    assert received.tolist() == [1.0] * LENGTH
    assert second.wire() == (0, NBYTES)


def test_waiting_twice_takes_one_message() -> None:
    first, second = ThreadsComm.world(2)
    first.send(torch.ones(1), 1)
    first.send(torch.full((1,), 2.0), 1)
    received = torch.zeros(1)
    work = second.irecv(received, 0)
    work.wait()
    work.wait()
    assert float(received) == 1.0
    second.recv(received, 0)
    assert float(received) == 2.0


def test_every_strategys_prediction_is_conserved() -> None:
    """What all workers send in a step is what all receive, for messages with a peer, pair by pair."""
    for name in ("ring", "root-average"):
        strategy = StrategySpec.parse(name).build()
        specs = [TensorSpec(length, 4) for length in (10, 3, 7)]
        sent, received = Counter(), Counter()
        for rank in range(4):
            for operation in strategy.traffic(specs, rank, 4, 0):
                pair = (rank, operation.peer) if operation.op == "send" else (operation.peer, rank)
                (sent if operation.op == "send" else received).add(Operation(str(pair), operation.nbytes))
        assert sent.nbytes == received.nbytes
        assert sum(sent.nbytes.values()) == 2 * 3 * 20 * 4  # twice through N - 1 workers, 20 numbers of 4 bytes
