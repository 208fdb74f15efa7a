"""Shared memory by itself: collectives and reductions of any length and number type, in any interleaving.

Workers are threads here, each with its own mapping, so that worlds of any size are cheap; pieces are small, so that
short vectors take many. What needs processes is in test_shm_faults.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import Meeting, on_pool, on_shm_threads
from paceline.comm import shm, shm_memory, shm_reduction
from paceline.comm.shm import ShmComm
from paceline.comm.shm_memory import part_bounds
from paceline.errors import RunError
from paceline.launch.local import LocalPool
from paceline.train.context import Context

CPU = torch.device("cpu")
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
DTYPES = [*INTEGERS, torch.bool, *FLOATS]
PIECE = 4096


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(shm, "LONG_PIECE_BYTES", PIECE)
    monkeypatch.setattr(shm, "SMALL_BYTES", 1024)
    monkeypatch.setattr(shm_memory, "MEMMOVE_BYTES", 512)


def force_helpers(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(shm, "spare_cores", lambda num_workers: size)  # noqa: ARG005
    monkeypatch.setattr(shm_reduction, "HELPER_BYTES", 1)
    monkeypatch.setattr(shm_reduction, "BLOCK_BYTES", 256)


def numbers(rank: int, seed: int, length: int, dtype: torch.dtype) -> Tensor:
    """Small whole numbers: their sums are exact in every type and any order."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randint(0, 4, (length,), generator=generator).to(dtype)


def total(world_size: int, seed: int, length: int, dtype: torch.dtype) -> Tensor:
    everybody = torch.stack([numbers(rank, seed, length, dtype) for rank in range(world_size)])
    if dtype == torch.bool:
        return everybody.any(0)
    return everybody.sum(0) if dtype.is_complex else everybody.to(torch.int64).sum(0).to(dtype)


def dawdle(rng: random.Random) -> None:
    if rng.random() < 0.1:
        time.sleep(rng.random() * 2e-3)


def do_all(context: Context, cases: list[tuple[torch.dtype, int]]) -> list[tuple[torch.dtype, int]]:
    """Every collective for every case, workers late at random. Returns the cases whose values were right."""
    comm, ws = context.comm, context.world_size
    rng = random.Random(comm.rank)
    right = []
    for seed, (dtype, length) in enumerate(cases):
        own, expected = numbers(comm.rank, seed, length, dtype), total(ws, seed, length, dtype)
        everybody = [numbers(rank, seed, length, dtype) for rank in range(ws)]
        root = seed % ws
        dawdle(rng)
        summed = own.clone()
        comm.all_reduce(summed)
        assert torch.equal(summed, expected), ("all_reduce", dtype, length)
        tensor = own.clone()
        comm.broadcast(tensor, root)
        assert torch.equal(tensor, everybody[root]), ("broadcast", dtype, length)
        dawdle(rng)
        gathered = comm.gather(own, root)
        assert len(gathered) == (ws if comm.rank == root else 0)
        assert all(map(torch.equal, gathered, everybody)), ("gather", dtype, length)
        assert all(map(torch.equal, comm.all_gather(own), everybody)), ("all_gather", dtype, length)
        comm.scatter(tensor, [piece.clone() for piece in everybody] if comm.rank == root else [], root)
        assert torch.equal(tensor, own), ("scatter", dtype, length)
        dawdle(rng)
        long = torch.cat([numbers(comm.rank, seed + peer, length, dtype) for peer in range(ws)])
        part = long[comm.rank * length : (comm.rank + 1) * length]  # in place, as the contract allows
        comm.reduce_scatter(part, long)
        assert torch.equal(part, total(ws, seed + comm.rank, length, dtype)), ("reduce_scatter", dtype, length)
        right.append((dtype, length))
    return right


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.usefixtures("small_pieces")
def test_collectives_of_every_type_and_length(world_size: int) -> None:
    def lengths(dtype: torch.dtype) -> list[int]:
        piece = PIECE // dtype.itemsize
        return [0, 1, 7, 300, piece - 1, piece, piece + 1, 3 * piece + 5]

    cases = [(dtype, length) for dtype in DTYPES for length in lengths(dtype)]
    assert on_shm_threads(world_size, do_all, cases=cases) == [cases] * world_size


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_collectives_of_processes_around_a_real_piece(pool: LocalPool, world_size: int) -> None:
    cases = [
        (dtype, length)
        for dtype in (torch.float32, torch.bfloat16, torch.int64)
        for piece in [shm.PIECE_BYTES // dtype.itemsize]
        for length in (0, 1, 7, 1000, piece - 1, piece, piece + 1, 7 * piece // 2)
    ]
    assert on_pool(pool, world_size, do_all, comm="shm", cases=cases) == [cases] * world_size


def test_sixty_four_workers() -> None:
    cases = [(torch.float32, 3), (torch.int64, 1000)]
    assert on_shm_threads(64, do_all, cases=cases, timeout_s=60) == [cases] * 64


def test_more_workers_than_that_are_refused() -> None:
    with pytest.raises(RunError, match="comm shm connects at most 64 workers, not 65"):
        ShmComm(0, 65, Meeting())


def sums_of_fractions(context: Context, length: int) -> tuple[Tensor, ...]:
    """Numbers whose sum depends on the order: every worker must add in the same one."""
    comm = context.comm
    own = torch.randn(length, generator=torch.Generator().manual_seed(comm.rank)) * 10.0**comm.rank
    results = [own.clone() for _ in range(3)]
    comm.all_reduce(results[0])
    for shared in (True, False):
        reduction = comm.reduction(length, torch.float32, CPU, shared=shared)
        reduction.own.copy_(own)
        reduction.start(0, length).wait()
        results[1 + (not shared)].copy_(reduction.result)
        comm.barrier()
    return tuple(results)


@pytest.mark.parametrize("length", [5, 700, 5000])
@pytest.mark.usefixtures("small_pieces")
def test_the_same_bits_everywhere(length: int) -> None:
    workers = on_shm_threads(5, sums_of_fractions, length=length)
    for results in workers[1:]:
        assert all(map(torch.equal, results, workers[0]))


# Reductions.

RANGES = {"a": [(0, 1600), (1600, 1616), (1616, 5003)], "b": [(0, 300)], "c": [(0, 240), (240, 480)]}
NUM_RANGES = sum(map(len, RANGES.values()))


def reduce_often(context: Context, shared: bool, steps: int, seed: int) -> int:
    """Three reductions at once, step after step, while messages and other collectives pass between.

    Workers are late at random, wait in an order of their own, and overwrite what is theirs at once. Returns the number
    of results that were right.
    """
    comm, ws = context.comm, context.world_size
    rng = random.Random(100 * seed + comm.rank)
    agreed = random.Random(seed)  # what has to be done by all alike
    types = {"a": torch.float32, "b": torch.int64, "c": torch.float16}
    kinds = {name: comm.reduction(RANGES[name][-1][1], types[name], CPU, shared=shared) for name in RANGES}
    num_right = 0
    for step in range(steps):
        order = [(name, index) for name in RANGES for index in range(len(RANGES[name]))]
        works = {}
        for number, (name, index) in enumerate(order):
            reduction, (begin, end) = kinds[name], RANGES[name][index]
            values = numbers(comm.rank, step + number, end - begin, types[name])
            dawdle(rng)
            fill = lambda own=reduction.own[begin:end], values=values: own.copy_(values)  # noqa: E731
            start = reduction.start_scatter if name == "c" and ws in (2, 4) else reduction.start
            if rng.random() < 0.5:
                works[name, index] = start(begin, end, fill)
            else:
                fill()
                works[name, index] = start(begin, end)
            what = agreed.choice(["nothing", "all_reduce", "message", "barrier", "progress"])
            if what == "all_reduce":
                tensor = torch.ones(agreed.choice([1, 5000]))
                comm.all_reduce(tensor)
                assert float(tensor[-1]) == ws
            elif what == "message":
                sent = comm.isend(torch.full((3,), step), (comm.rank + 1) % ws)
                got = torch.zeros(3, dtype=torch.int64)
                comm.recv(got, (comm.rank - 1) % ws)
                sent.wait()
                assert got.tolist() == [step] * 3
            elif what == "barrier":
                comm.barrier()
            elif what == "progress":
                comm.progress()
        waits = list(enumerate(order))
        rng.shuffle(waits)
        for number, (name, index) in waits:
            reduction, (begin, end) = kinds[name], RANGES[name][index]
            works[name, index].wait()
            dawdle(rng)
            expected = total(ws, step + number, end - begin, types[name])
            part = slice(begin, end)
            if name == "c" and ws in (2, 4):
                part = reduction.part(begin, end)
                expected = expected[part.start - begin : part.stop - begin]
            assert torch.equal(reduction.result[part], expected), (step, name, index)
            num_right += 1
            works[name, index].wait()  # again: nothing happens
            # At once, while peers may still be about to look: what is private is nobody else's.
            (reduction.own if shared else reduction.result)[begin:end].fill_(-99)
    comm.barrier()
    return num_right


@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.usefixtures("small_pieces")
def test_reductions_are_plain_sums(
    monkeypatch: pytest.MonkeyPatch, world_size: int, shared: bool, helpers: int
) -> None:
    force_helpers(monkeypatch, helpers)
    found = on_shm_threads(world_size, reduce_often, shared=shared, steps=12, seed=world_size)
    assert found == [12 * NUM_RANGES] * world_size


def test_reductions_of_processes(pool: LocalPool) -> None:
    for shared in (True, False):
        found = on_pool(pool, 4, reduce_often, comm="shm", shared=shared, steps=60, seed=7)
        assert found == [60 * NUM_RANGES] * 4


def in_its_own_order(context: Context, helpers: int) -> list[float]:
    """What worker 1 needs, worker 0 has begun, but waits elsewhere for what worker 1 does afterwards."""
    comm = context.comm
    assert (comm._helpers is not None) == bool(helpers)
    first, second = (comm.reduction(8, torch.float32, CPU) for _ in range(2))
    big = torch.full((1 << 16,), 3, dtype=torch.uint8)
    first.own.fill_(1)
    second.own.fill_(2)
    works = [first.start(0, 8), second.start(0, 8)]
    tensor = torch.zeros(1)
    if comm.rank == 0:
        comm.recv(tensor, 1)
        works[1].wait()
        works[0].wait()
        sending = comm.isend(big, 1)  # longer than a channel: it moves while its sender waits for something else
        comm.barrier()
        sending.wait()
    else:
        works[0].wait()
        comm.send(torch.ones(1), 0)
        works[1].wait()
        received = torch.zeros_like(big)
        comm.recv(received, 0)
        assert torch.equal(received, big)
        comm.barrier()
    return [float(tensor), float(first.result[7]), float(second.result[0])]


@pytest.mark.parametrize("helpers", [0, 2])
@pytest.mark.usefixtures("small_channels")
def test_whoever_waits_does_what_its_peer_waits_for(monkeypatch: pytest.MonkeyPatch, helpers: int) -> None:
    force_helpers(monkeypatch, helpers)
    results = on_shm_threads(2, in_its_own_order, helpers=helpers, timeout_s=8)
    assert results == [[1.0, 2.0, 4.0], [0.0, 2.0, 4.0]]


def fill_late_then_none(context: Context) -> list[float]:
    """A range that the helpers is slow to fill, and one that was ready when it started."""
    comm = context.comm
    reduction = comm.reduction(64, torch.float32, CPU)
    reduction.own[32:].fill_(5)

    def fill() -> None:
        time.sleep(0.1 * comm.rank)
        reduction.own[:32].fill_(1)

    works = [reduction.start(0, 32, fill), reduction.start(32, 64)]
    for work in works:
        work.wait()
    return reduction.result[::32].tolist()


def test_a_range_is_not_ready_before_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    force_helpers(monkeypatch, 2)
    assert on_shm_threads(3, fill_late_then_none) == [[3.0, 15.0]] * 3


def fail_to_fill(context: Context, what: str) -> str:
    """What goes wrong in a thread of the helpers is raised by the worker that waits, and peers get no sum."""
    comm = context.comm
    reduction: Any = comm.reduction(4096, torch.float32, CPU)

    def fill() -> None:
        if comm.rank == 1 and what == "fill":
            raise LookupError("no such number")

    def add(piece: tuple[torch.Tensor, torch.Tensor]) -> None:
        raise LookupError(f"no such sum of {len(piece[0])}")

    if comm.rank == 1 and what == "add":
        reduction._add = add
    works = [reduction.start(0, 2048, fill), reduction.start(2048, 4096, fill)]
    try:
        for work in works:
            work.wait()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.each_choice
@pytest.mark.parametrize("helpers", [0, 1, 3])
@pytest.mark.parametrize("what", ["fill", "add"])
def test_an_error_in_a_thread_is_raised_by_its_worker(monkeypatch: pytest.MonkeyPatch, what: str, helpers: int) -> None:
    force_helpers(monkeypatch, helpers)
    if what == "fill" and not helpers:
        with pytest.raises(LookupError, match="no such number"):
            on_shm_threads(2, fail_to_fill, what=what, timeout_s=3)
        return
    peer, culprit = on_shm_threads_without_end(2, fail_to_fill, what=what)
    assert culprit == {"fill": "LookupError: no such number", "add": "LookupError: no such sum of 2"}[what]
    assert peer.startswith("CommError: worker 0 received nothing from worker 1 in 3 s")


def on_shm_threads_without_end(world_size: int, function: Any, **arguments: Any) -> list[str]:
    """As workers that failed: they do not meet at the end."""
    return on_shm_threads(world_size, function, timeout_s=3, meet_at_end=False, **arguments)


def test_parts_cover_a_vector_in_whole_lines() -> None:
    for numel in (0, 1, 15, 16, 17, 1000, 1024):
        for world_size in (1, 2, 3, 64):
            bounds = part_bounds(numel, world_size, 4)
            assert (bounds[0], bounds[-1], len(bounds)) == (0, numel, world_size + 1)
            assert bounds == sorted(bounds)
            assert all(bound % 16 == 0 or bound == numel for bound in bounds)


# One memory for all.


def write_own_parts(context: Context) -> list[list[float]]:
    comm, ws = context.comm, context.world_size
    common = comm.shared_vector(10 * ws, torch.float64, CPU)
    assert common.is_one_memory == (ws > 1)
    seen = []
    for step in range(20):
        for begin, size in ((0, 4), (4 * ws, 6)):
            mine = begin + comm.rank * size
            common.memory[mine : mine + size] = step * 10 + comm.rank
        common.gather([(0, 4 * ws), (4 * ws, 10 * ws)])
        seen = common.memory.tolist()
        comm.barrier()
    return seen


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_common_memory_is_gathered(world_size: int) -> None:
    ranks = range(world_size)
    expected = [190.0 + r for r in ranks for _ in range(4)] + [190.0 + r for r in ranks for _ in range(6)]
    assert on_shm_threads(world_size, write_own_parts) == [expected] * world_size


@pytest.mark.parametrize(
    ("cores", "world_size", "expected"),
    [(16, 4, 1 << 20), (5, 4, 1 << 20), (4, 4, 8 << 20), (2, 4, 8 << 20), (2, 16, 4 << 20), (2, 64, 1 << 20)],
)
def test_pieces_are_long_where_workers_share_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, world_size: int, expected: int
) -> None:
    store = Meeting()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert shm._choose_piece_bytes(store, 0, world_size) == expected
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert shm._choose_piece_bytes(store, 1, world_size) == expected, "what rank 0 says, whatever this one may use"


def _out_of_step(context: Context, way: str) -> str:
    """Worker 1 calls something else than worker 0; both are told."""
    comm = context.comm
    other = {
        "another operation": lambda: comm.broadcast(torch.zeros(8)),
        "another length": lambda: comm.all_reduce(torch.zeros(9)),
        "another length by far": lambda: comm.all_reduce(torch.zeros(9000)),
        "a barrier": comm.barrier,
    }
    with pytest.raises(RunError, match="workers are out of step: worker") as caught:
        other[way]() if comm.rank == 1 else comm.all_reduce(torch.zeros(8))
    return str(caught.value)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("way", ["another operation", "another length", "another length by far", "a barrier"])
def test_workers_that_call_different_collectives_are_told(way: str) -> None:
    first, second = on_shm_threads(2, _out_of_step, way=way, meet_at_end=False)
    assert "worker 0 is in all_reduce of 32 bytes, worker 1 in" in first
    assert "every worker must call the same collectives in the same order" in second
