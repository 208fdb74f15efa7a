"""A pool of worker processes, which launchers start once and reuse for several tasks (training runs)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, cast

from paceline.comm.torch import make_store
from paceline.errors import DivergedError, RunError, WorkerError
from paceline.launch.base import Task, WorkerPool
from paceline.launch.file_transfer import FileReceiver
from paceline.launch.messages import (
    Done,
    Emitted,
    Failed,
    FilePiece,
    MessageChannel,
    MessageError,
    OpenStore,
    Ready,
    Reply,
    RunTask,
    StoreOpened,
)
from paceline.launch.process_host import STOP_S, ProcessHost, WorkerProcess

if TYPE_CHECKING:
    from paceline.train.context import Event

START_S = 120.0  # longest wait for a process to start: importing torch is slow on a busy machine
GRACE_S = 1.5  # wait after a communication error, for a message from the process that caused it


@dataclass(frozen=True)
class _Failure:
    rank: int
    kind: str  # died, raised, comm, diverged
    message: str
    traceback: str = ""


class ProcessPool(WorkerPool):
    """Worker processes that a ProcessHost starts. If a task fails, all of them end, and the next task restarts them."""

    can_go_on = True

    def __init__(self, num_processes: int, host: ProcessHost, *, first_rank: int = 0) -> None:
        """`num_processes` is the number of processes to start: the workers and servers of the largest task.

        If a task also has processes on other hosts, `num_processes` counts those of this pool only, and `first_rank` is
        the rank of the first of them.
        """
        self._num_processes, self._host, self._first_rank = num_processes, host, first_rank
        self._is_open = False
        self._processes: list[WorkerProcess] = []
        self._objects = b""
        self._store: Any = None
        self._master = ("127.0.0.1", 0)
        self._job = 0

    def __enter__(self) -> ProcessPool:
        self._open()
        return self

    def set_objects(self, objects: bytes) -> None:
        if not self._host.is_forked:
            super().set_objects(objects)
        self._objects = objects

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        try:
            self._start(task)
            self._job += 1
            self._check_same_task(task)
            active = [index for index in range(self._num_processes) if self._first_rank + index < task.num_processes]
            for index in active:
                self._order(index, task)
            results = self._collect(task, active, on_event)
        except BaseException:
            self.close()
            raise
        return self._gather_results(task, results)

    def close(self) -> None:
        for process in self._processes:
            process.ask_to_end()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            process.end(deadline)
        self._processes = []
        if self._is_open:
            self._is_open = False
            self._host.close()

    def _open(self) -> None:
        if not self._is_open:
            self._host.open()
            self._is_open = True

    def _start(self, task: Task) -> None:
        if self._host.rendezvous is None and self._store is None:
            self._store, port = self._open_store(task.timeout_s)
            self._master = (self._master[0], port)
        if any(process.popen.poll() is not None for process in self._processes):
            self.close()  # a process died between two tasks
        if self._processes:
            return
        self._open()
        for process in self._host.start({"OMP_NUM_THREADS": str(task.threads)}):
            self._processes.append(process)
        for index, process in enumerate(self._processes):
            if not process.pipe.has_message(START_S):
                raise self._start_error(task, index, f"did not start within {START_S:g} s")
            reply = self._receive(process.pipe, index)
            if not isinstance(reply, Ready):
                raise self._start_error(task, index, f"could not start: {_reason(reply)}")
        if self._host.rendezvous is not None:
            self._master = (self._host.rendezvous[0], self._open_store_on_worker_0(task))

    def _start_error(self, task: Task, index: int, sentence: str) -> WorkerError:
        rank = self._first_rank + index
        where = self._location(index)
        return WorkerError(rank, sentence if sentence.endswith(where) else sentence + where, who=task.name_of(rank))

    def _location(self, index: int) -> str:
        location = self._host.location(index)
        return f" ({location})" if location else ""

    def _open_store(self, timeout_s: float) -> tuple[Any, int]:
        """Open the rendezvous store in this process. Return the store and its port."""
        store = make_store("127.0.0.1", 0, is_master=True, timeout_s=timeout_s)
        return store, store.port

    def _open_store_on_worker_0(self, task: Task) -> int:
        """Open the rendezvous store on worker 0, since this process may be outside the workers' network.

        Return the store's port.
        """
        assert self._host.rendezvous is not None
        address, port = self._host.rendezvous
        self._processes[0].pipe.send(OpenStore(address, port, task.timeout_s))
        reply = self._receive(self._processes[0].pipe, 0)
        if not isinstance(reply, StoreOpened):
            raise self._start_error(task, 0, f"cannot open the rendezvous at {address}:{port}: {_reason(reply)}")
        return reply.port

    def _check_same_task(self, task: Task) -> None:
        """Raise an error if the pools of other hosts run a different task. By default there are no other pools."""
        del task

    def _order(self, index: int, task: Task) -> None:
        slot = self._host.slot(index)
        self._processes[index].pipe.send(
            RunTask(
                task=task,
                rank=self._first_rank + index,
                local_rank=slot.local_rank,
                node=slot.node,
                job=self._job,
                master=self._master,
                address=slot.address,
                objects=self._objects,
            )
        )

    def _collect(self, task: Task, active: list[int], on_event: Callable[[Event], None]) -> dict[int, Any]:
        """Wait until all processes have replied, and return their results by rank.

        If a process dies or raises, raise WorkerError immediately. If a process only reports that it lost its peers,
        wait up to GRACE_S seconds for a message from the process that caused the loss, then raise WorkerError.
        """
        pipes: dict[MessageChannel, int] = {self._processes[index].pipe: index for index in active}
        results: dict[int, Any] = {}
        failures: list[_Failure] = []
        files = FileReceiver(task)
        deadline: float | None = None
        while pipes:
            ready: list[Any] = wait(
                cast(Any, list(pipes)), None if deadline is None else max(deadline - time.monotonic(), 0)
            )
            if not ready:
                break
            for pipe in ready:
                rank = self._first_rank + pipes[pipe]
                reply = self._receive(pipe, pipes[pipe])
                if isinstance(reply, Emitted):
                    on_event(reply.event)
                    continue
                if isinstance(reply, FilePiece) and rank == 0:
                    files.take(reply)
                    continue
                if isinstance(reply, Done):
                    results[rank] = reply.result
                elif isinstance(reply, Failed):
                    failures.append(_Failure(rank, reply.kind, reply.message, reply.traceback))
                elif isinstance(reply, _Failure):
                    failures.append(reply)
                else:
                    failures.append(
                        _Failure(rank, "raised", f"sent an unexpected message{self._location(pipes[pipe])}")
                    )
                del pipes[pipe]
            if any(failure.kind != "comm" for failure in failures):
                break
            if failures and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if failures:
            raise _verdict(task, failures, unanswered=[self._first_rank + index for index in pipes.values()])
        return results

    def _receive(self, pipe: MessageChannel, index: int) -> Reply | _Failure:
        rank = self._first_rank + index
        try:
            return pipe.receive()
        except MessageError as error:
            return _Failure(rank, "raised", f"sent {error}{self._location(index)}")
        except (EOFError, OSError):
            popen = self._processes[index].popen
            try:
                code = popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                code = popen.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return _Failure(rank, "died", f"died: its process {how}{self._host.hint(index, code)}")

    def _gather_results(self, task: Task, results: dict[int, Any]) -> list[Any]:
        return [results[rank] for rank in range(task.num_workers)]


def _reason(reply: Reply | _Failure) -> str:
    return reply.message if isinstance(reply, Failed | _Failure) else "it sent an unexpected message"


def _verdict(task: Task, failures: list[_Failure], unanswered: list[int]) -> RunError:
    """Return the error to report to the user after one or more processes failed.

    The error names a process that died or, if none died, a process that raised an exception. If no process did either,
    it names the first rank in `unanswered`, the ranks that have not replied. If all replied, it names a process that
    lost the connection to its peers.
    """
    culprits = sorted((f for f in failures if f.kind != "comm"), key=lambda f: f.kind != "died")
    if culprits:
        first = culprits[0]
        if first.kind == "diverged":
            return DivergedError(first.message)
        return WorkerError(first.rank, first.message, first.traceback, who=task.name_of(first.rank))
    if unanswered:
        waiting = ", ".join(str(failure.rank) for failure in failures)
        message = f"did not answer in time; it blocked worker {waiting}"
        return WorkerError(unanswered[0], message, who=task.name_of(unanswered[0]))
    first = failures[0]
    return WorkerError(first.rank, f"lost its peers: {first.message}", first.traceback, who=task.name_of(first.rank))
