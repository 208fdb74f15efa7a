"""Vectors that comm `shm` keeps in shared memory: gradients that are summed and parameters that are gathered.

Strategies with gradient buckets use these vectors in every step. A range is a contiguous slice of such a vector, such
as a bucket, that is summed or gathered in one operation.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm.base import Comm, CommError
from paceline.comm.collectives import Reduction, SharedVector, Work
from paceline.comm.helper_threads import HelperThreads, SharedJob
from paceline.comm.listener import BackgroundWork, ObservedWork, OpenOperation
from paceline.comm.shm_memory import Segment, add_up, copy, part_bounds, round_up_to_lines
from paceline.comm.shm_sync import Counters, ShmWaiter

HELPER_BYTES = 2 << 20  # adding a shorter vector takes less time than waking threads
CACHE_BYTES = 1 << 20  # a vector of this size stays in a core's own cache
BLOCK_BYTES = 256 << 10  # the smallest block that is worth another thread


@dataclass(frozen=True)
class Threads:
    """A worker's helper threads, and the objects with which the worker's threads wait for peers."""

    waiter: ShmWaiter  # of the worker's own thread
    helper_waiter: ShmWaiter  # of the ordered helper thread
    helpers: HelperThreads | None  # None: no core is free


class ShmReduction(Reduction):
    """A reduction in shared memory: one vector per worker, and one for the sum, which workers read in place or copy.

    Once all workers have started a range, each worker sums one slice of the range over all workers. Helper threads sum
    long vectors while the worker continues. Without helper threads, and for short vectors, the worker's own thread sums
    when it calls `progress` or waits. A worker must read the sum of a range before it starts the range again, so that
    no sum is overwritten while it is read.
    """

    def __init__(
        self, comm: Comm, segment: Segment, numel: int, dtype: torch.dtype, threads: Threads, *, is_shared: bool
    ) -> None:
        self._waiter = threads.waiter
        self._counters = Counters(segment, 0, self._waiter)
        begin = Counters.num_bytes(comm.world_size)
        stride = round_up_to_lines(numel * dtype.itemsize)
        rows = segment.tensor(begin, stride // dtype.itemsize * (comm.world_size + 1), dtype)
        rows = rows.view(comm.world_size + 1, -1)[:, :numel]
        self._contributions, self._sum = rows[:-1], rows[-1]
        super().__init__(comm, rows[comm.rank])
        self.own.zero_()  # so that the kernel allocates the memory now, not during training
        self._is_shared = is_shared
        if is_shared:
            self.result = self._sum
        self._plans: dict[tuple[str, int, int], _Plan] = {}  # by operation, begin and end, which strategies repeat
        self._number = 0
        self._helpers = threads.helpers if numel * dtype.itemsize >= HELPER_BYTES else None
        self._helper_counters = Counters(segment, 0, threads.helper_waiter)
        self._ranges: deque[_Range] = deque()  # ranges that have started; this worker has not summed its slices yet
        self._num_filled = 0  # ranges whose contributions are complete and published as READY
        self._published = 0  # this worker has summed its slices of all ranges up to this number
        self._added: set[int] = set()  # later ranges that helper threads have summed out of order
        self._added_at: dict[int, float] = {}  # by range, until it was waited for: time of summing this worker's slice
        self._error: BaseException | None = None  # error in a helper thread, raised in the worker's own thread
        self._lock = threading.Lock()
        self._is_waiting = False

    @staticmethod
    def num_bytes(numel: int, dtype: torch.dtype, world_size: int) -> int:
        return Counters.num_bytes(world_size) + round_up_to_lines(numel * dtype.itemsize) * (world_size + 1)

    def start(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        return self._start("all_reduce", begin, end, fill)

    def start_scatter(self, begin: int, end: int, fill: Callable[[], None] | None = None) -> Work:
        return self._start("reduce_scatter", begin, end, fill)

    def _start(self, op: str, begin: int, end: int, fill: Callable[[], None] | None) -> Work:
        plan = self._plans.get((op, begin, end))
        if plan is None:
            plan = self._plans[op, begin, end] = self._plan(op, begin, end)
        span = self.comm._begin_bytes(op, plan.num_bytes)
        work = self._launch(plan, fill)
        if span is None:
            return work
        work.span = span
        return ObservedWork(work, span)

    def _plan(self, op: str, begin: int, end: int) -> _Plan:
        if op == "all_reduce":
            bounds = part_bounds(end - begin, self.comm.world_size, self.own.element_size())
            mine = slice(begin + bounds[self.comm.rank], begin + bounds[self.comm.rank + 1])
            needed = slice(begin, end)
        else:
            mine = needed = self.part(begin, end)
        pieces = [(self._contributions[:, block], self._sum[block]) for block in self._blocks(mine)]
        return _Plan(self.own[begin:end].nbytes, pieces, None if self._is_shared else needed)

    def progress(self) -> None:
        """Sum this worker's slices of all ranges that all workers have started."""
        while self._ranges and self._counters.first_behind(Counters.READY, self._ranges[0].number) < 0:
            work = self._ranges.popleft()
            begin = perf_counter()
            self._divide(work.adding)
            if work.span is not None and not self._is_waiting:
                work.span.blocked(begin, perf_counter(), is_busy=True)

    def completed_at(self, number: int) -> float | None:
        """Return the approximate time at which the sum of range `number` was complete.

        It is the time at which this worker finished its own slice; a peer may have finished slightly later. Return None
        if the sum is not complete, or if this worker has already waited for the sum.
        """
        return None if self._counters.first_behind(Counters.SUMMED, number) >= 0 else self._added_at.get(number)

    def _launch(self, plan: _Plan, fill: Callable[[], None] | None) -> _Range:
        self._number += 1
        number, helpers = self._number, self._helpers
        adding = SharedJob(plan.pieces, self._add, partial(self._publish_added, number))
        work = _Range(self, number, adding, plan.private)
        if helpers is None:
            if fill is not None:
                fill()
            self._counters.publish(Counters.READY, number)
            self._ranges.append(work)
            return work
        if fill is None and self._num_filled == number - 1:
            self._num_filled = number
            self._counters.publish(Counters.READY, number)
            self._ranges.append(work)
        else:
            helpers.submit(partial(self._fill_and_add, work, fill))
        return work

    def _fill_and_add(self, work: _Range, fill: Callable[[], None] | None) -> None:
        """Write this worker's contribution to a range, wait for the peers' contributions, and sum this worker's slice.

        This method runs in the helper thread that runs jobs in order. It drops a CommError of the wait, because the
        worker's own thread waits for the same peers and raises the same error.
        """
        if self._error is not None:
            return
        try:
            if fill is not None:
                fill()
        except BaseException as error:
            self._fail(error)
            return
        if self._num_filled < work.number:
            self._num_filled = work.number
            self._helper_counters.publish(Counters.READY, work.number)
        with suppress(CommError):
            self._helper_counters.wait_all(Counters.READY, work.number)
            self._divide(work.adding)

    @staticmethod
    def _add(piece: tuple[Tensor, Tensor]) -> None:
        add_up(*piece)

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._waiter.wake(self._waiter.rank)

    def _publish_added(self, number: int, error: BaseException | None) -> None:
        """Record that this worker has summed its slice of range `number`, or failed with `error`.

        Ranges may be summed out of order. Peers see the highest number n such that ranges 1 to n are all summed.
        """
        if error is not None:
            self._fail(error)
            return
        with self._lock:
            self._added_at[number] = perf_counter()
            self._added.add(number)
            while self._published + 1 in self._added:
                self._published += 1
                self._added.remove(self._published)
            self._counters.publish(Counters.SUMMED, self._published)

    def _finish(self, work: _Range) -> None:
        self._is_waiting = True  # ObservedWork reports the whole wait; `progress` must not report it again
        try:
            self._wait_all(Counters.READY, work.number)
            self.progress()  # sum earlier ranges first
            self._divide(work.adding)
            self._wait_all(Counters.SUMMED, work.number)
            self._added_at.pop(work.number, None)
            if work.private is not None:
                self._copy_out(work.private)
        finally:
            self._is_waiting = False

    def _wait_all(self, kind: int, number: int) -> None:
        def first_missing() -> int:
            if self._error is not None:
                raise self._error
            return self._counters.first_behind(kind, number)

        self._waiter.wait(first_missing)

    def _copy_out(self, needed: slice) -> None:
        blocks = self._blocks(needed)
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        copying = SharedJob(blocks, lambda block: copy(self.own[block], self._sum[block]), done.put)
        self._divide(copying)
        error = done.get()
        if error is not None:
            raise error

    def _divide(self, job: SharedJob[Any]) -> None:
        """Process the remaining blocks of a job in this thread and in free helper threads."""
        if self._helpers is not None:
            self._helpers.share(job.run, job.num_unfinished - 1)
        job.run()

    def _blocks(self, part: slice) -> list[slice]:
        """Divide a slice into blocks, at most one per thread; short slices are not divided."""
        length = part.stop - part.start
        if length == 0:
            return []
        size = length
        if self._helpers is not None:
            size = max(-(-length // (self._helpers.size + 1)), BLOCK_BYTES // self.own.element_size())
        return [slice(first, min(first + size, part.stop)) for first in range(part.start, part.stop, size)]


class ShmSharedVector(SharedVector):
    """A vector in memory that all workers map. `gather` needs no copy: it is only a barrier."""

    is_one_memory: ClassVar[bool] = True

    def gather(self, ranges: Sequence[tuple[int, int]]) -> None:
        size = self.memory.element_size()
        parts = [(end - begin) // self.comm.world_size * size for begin, end in ranges]
        spans = [span for nbytes in parts if (span := self.comm._begin_bytes("all_gather", nbytes)) is not None]
        self.comm._barrier()
        if self.memory.nbytes <= CACHE_BYTES:
            # A sequential read fetches the peers' writes into the cache faster than forward would.
            torch.sum(self.memory, 0)
        end_s = perf_counter()
        for span in spans:
            span.end(end_s)
        if spans:  # one barrier for all ranges
            spans[0].blocked(spans[0].begin, end_s)


@dataclass(frozen=True)
class _Plan:
    """The blocks that one worker sums and copies for a range. A plan is made once and reused in every step."""

    num_bytes: int  # size of the whole range
    pieces: list[tuple[Tensor, Tensor]]  # blocks to sum: all workers' contributions, and the target of their sum
    private: slice | None  # slice of the sum to copy to the worker's own vector; None: the sum is read in place


class _Range(BackgroundWork):
    """A range whose sum is in progress; `wait` returns when this worker can read the sum."""

    def __init__(self, reduction: ShmReduction, number: int, adding: SharedJob[Any], private: slice | None) -> None:
        self._reduction = reduction
        self.number, self.adding, self.private = number, adding, private
        self.span: OpenOperation | None = None  # None if no listener records the operation
        self._is_done = False

    @property
    def completed(self) -> float | None:  # type: ignore[override]
        return self._reduction.completed_at(self.number)

    def wait(self) -> None:
        if not self._is_done:
            self._reduction._finish(self)
            self._is_done = True
