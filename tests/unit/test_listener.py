"""What a comm tells its listener: numbers, times, bytes, and nothing about bookkeeping."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from helpers import on_shm_threads, on_threads
from paceline.comm.listener import BACKGROUND_BYTES, LaunchedGroup, ObservedWork, OpenOperation, settle
from paceline.comm.shm import ShmComm
from paceline.train.context import Context

WORLDS = [
    on_threads,
    pytest.param(on_shm_threads, marks=pytest.mark.skipif(bool(ShmComm.unavailable()), reason=ShmComm.unavailable())),
]


class Ear:
    """Remembers all that it hears."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self.ops: list[tuple[Any, ...]] = []
        self.waits: list[tuple[Any, ...]] = []
        self.busy: list[tuple[Any, ...]] = []

    def op(self, *values: Any) -> None:
        self.ops.append(values)

    def blocked(self, *values: Any, is_busy: bool = False) -> None:
        (self.busy if is_busy else self.waits).append(values)


def every_operation(context: Context) -> Ear:
    comm, ear = context.comm, Ear(step=5)
    comm.listener = ear
    tensor, whole = torch.ones(4), torch.ones(4 * comm.world_size)
    with comm.uncounted():
        comm.all_reduce(tensor)
    comm.all_reduce(tensor)
    work = comm.iall_reduce(tensor)
    work.wait()
    work.wait()
    comm.reduce_scatter(tensor, whole)
    comm.broadcast(tensor, 1)
    comm.scatter(tensor, comm.gather(tensor, 1), 1)
    comm.all_gather(tensor)
    comm.barrier()
    reduction = comm.reduction(4, torch.float32, torch.device("cpu"))
    reduction.start(0, 4).wait()
    common = comm.shared_vector(4 * comm.world_size, torch.float32, torch.device("cpu"))
    common.gather([(0, 4 * comm.world_size)])
    if comm.rank == 0:
        for _ in range(2):
            comm.send(tensor, 1, 9)
        comm.recv_any(tensor, 3)
    elif comm.rank == 1:
        for _ in range(2):
            comm.recv(tensor, 0, 9)
        comm.send(tensor, 0, 3)
    comm.listener = None
    return ear


@pytest.mark.parametrize("world", WORLDS)
def test_every_operation_is_told_once(world: Any) -> None:
    first, second, third = world(3, every_operation)
    names = ["all_reduce", "all_reduce", "reduce_scatter", "broadcast", "gather", "scatter", "all_gather", "barrier"]
    for ear in (first, second, third):
        collectives = [op for op in ear.ops if op[0] not in ("send", "recv") and op[1]]
        assert [op[0] for op in collectives] == [*names[:-1], "all_reduce", "all_gather"]
        assert [op[1] for op in collectives] == [16, 16, 48, *[16] * 6]
        assert [op[2] for op in collectives[3:6]] == [1, 1, 1]
        assert {op[7] for op in ear.ops} == {"memory"}
        assert {op[8] for op in ear.ops} == {5}
        assert all(op[4] <= op[5] for op in ear.ops)
        # Every operation here was waited for, where it took any time at all.
        assert {wait[0] for wait in ear.waits} <= {op[0] for op in ear.ops}
        assert "barrier" in {wait[0] for wait in ear.waits}
    numbers = [[(op[0], op[6]) for op in ear.ops if op[0] not in ("send", "recv")] for ear in (first, second, third)]
    assert numbers[0] == numbers[1] == numbers[2]
    assert [number for _, number in numbers[0]] == list(range(len(numbers[0])))
    # Messages are numbered by peer, tag and direction.
    assert [(op[0], op[2], op[3], op[6]) for op in first.ops[-3:]] == [
        *[("send", 1, 9, 0), ("send", 1, 9, 1), ("recv", 1, 3, 0)],
    ]
    assert [(op[0], op[2], op[3], op[6]) for op in second.ops[-3:]] == [
        *[("recv", 0, 9, 0), ("recv", 0, 9, 1), ("send", 0, 3, 0)],
    ]


def some_steps(context: Context) -> list[int]:
    comm, ear = context.comm, Ear(step=-1)
    comm.listener = ear
    for step in range(6):
        ear.step = step if step % 2 == 0 else -1
        comm.all_reduce(torch.ones(1))
    return [op[6] for op in ear.ops]


def test_operations_of_steps_that_are_not_kept_are_numbered_too() -> None:
    assert on_threads(2, some_steps) == [[0, 2, 4]] * 2


class Waited:
    def wait(self) -> None:
        return None


def test_work_that_was_not_waited_for_is_not_told() -> None:
    ear = Ear()
    work = ObservedWork(Waited(), OpenOperation(ear, "send", 8, 1, 0, 0, "network"))
    assert ear.ops == []
    work.wait()
    assert len(ear.ops) == 1


class FromTorch:
    """Work of torch: it is complete when it is told so."""

    def __init__(self) -> None:
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def is_completed(self) -> bool:
        return self.future.done()


def launched(ear: Ear, number: int, nbytes: int, at: float, completed: float | None) -> LaunchedGroup:
    item = LaunchedGroup(FromTorch(), [OpenOperation(ear, "all_reduce", nbytes, None, 0, number, "network")])
    item.launched_at, item.completed = at, completed
    return item


def test_what_ddp_waits_for_at_the_end_of_backward() -> None:
    ear = Ear()
    settle([launched(ear, 0, 8, 1.0, 1.5), launched(ear, 1, 8, 2.0, 3.5), launched(ear, 2, 8, 3.0, None)], 4.0)
    assert [(op[6], op[5]) for op in ear.ops] == [(0, 1.5), (1, 3.5), (2, 4.0)]
    # The last was begun at 3: from then on the worker stands still, first for number 1, then for number 2.
    assert [(wait[5], wait[3], wait[4]) for wait in ear.waits] == [(1, 3.0, 3.5), (2, 3.5, 4.0)]


def test_torch_says_when_large_ones_are_complete_and_small_ones_are_looked_at() -> None:
    ear = Ear()
    large, small = launched(ear, 0, BACKGROUND_BYTES, 1.0, None), launched(ear, 1, 8, 1.0, None)
    small.check()
    assert small.completed is None
    for item in (large, small):
        item.work.future.set_result(None)
    assert large.completed is not None
    assert small.completed is None
    small.check()
    assert small.completed is not None


FILL_S = 0.02


def fill_slowly(context: Context) -> Ear:
    comm, ear = context.comm, Ear()
    reduction = comm.reduction(4, torch.float32, torch.device("cpu"))
    comm.listener = ear
    reduction.start(0, 4, lambda: time.sleep(FILL_S)).wait()
    comm.listener = None
    return ear


def test_what_the_workers_own_thread_does_for_the_comm_is_neither_waiting_nor_overlap() -> None:
    for ear in on_shm_threads(2, fill_slowly):
        (_, _, _, begin, end, number), *_ = ear.busy
        assert number == ear.ops[0][6]
        assert end - begin >= FILL_S
