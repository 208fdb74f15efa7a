"""A pool of worker processes, which launchers start once and reuse for several tasks (training runs)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, cast

from paceline.authenticated_channel import new_secret
from paceline.comm.authenticated_store import StoreServer
from paceline.errors import WorkerError
from paceline.interrupts import deferred
from paceline.launch.base import Task, WorkerPool
from paceline.launch.file_transfer import FileReceiver
from paceline.launch.messages import (
    Beat,
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
from paceline.launch.process_host import ProcessHost, WorkerProcess
from paceline.launch.verdict import (
    Failure,
    Watched,
    death_message,
    is_process_stopped,
    num_oom_kills,
    stopped_failure,
    verdict,
)
from paceline.limits import START_S, STOP_S, Limits

if TYPE_CHECKING:
    from paceline.train.context import Event


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
        self._secret = (
            new_secret()
        )  # processes get it through their pipes, and show the rendezvous store that they know it
        self._store: Any = None
        self._master = ("127.0.0.1", 0)
        self._job = 0
        self._num_oom_kills = 0  # of this machine, when the task began

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
        with deferred():
            self._end_processes()

    def _end_processes(self) -> None:
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
        self._host.limits = Limits(task.timeout_s)
        for process in self._host.start({"OMP_NUM_THREADS": str(task.threads)}):
            self._processes.append(process)
        for index, process in enumerate(self._processes):
            self._wait_for_start(task, index)
            reply = self._receive(process.pipe, index)
            if not isinstance(reply, Ready):
                raise self._start_error(task, index, f"could not start: {_reason(reply)}")
        if self._host.rendezvous is not None:
            self._master = (self._host.rendezvous[0], self._open_store_on_worker_0(task))

    def _wait_for_start(self, task: Task, index: int) -> None:
        """Wait for the first message of a process. Raise WorkerError if it is stopped or takes too long."""
        limits, process, started = Limits(task.timeout_s), self._processes[index], time.monotonic()
        running = started  # when the process was last not stopped
        while not process.pipe.has_message(limits.heartbeat_s):
            now = time.monotonic()
            if not (self._host.is_forked and is_process_stopped(process.popen.pid)):
                running = now
            elif now > running + limits.operation_s:
                raise self._start_error(task, index, f"did not start within {task.timeout_s:g} s: it is stopped")
            if now > started + START_S:
                raise self._start_error(task, index, f"did not start within {START_S:g} s")

    def _start_error(self, task: Task, index: int, sentence: str) -> WorkerError:
        rank = self._first_rank + index
        where = self._location(index)
        return WorkerError(rank, sentence if sentence.endswith(where) else sentence + where, who=task.name_of(rank))

    def _location(self, index: int) -> str:
        location = self._host.location(index)
        return f" ({location})" if location else ""

    def _open_store(self, timeout_s: float) -> tuple[Any, int]:
        """Open the rendezvous store in this process. Return the store and its port."""
        del timeout_s  # this process does not use the store itself
        server = StoreServer("127.0.0.1", 0, self._secret)
        return server, server.port

    def _open_store_on_worker_0(self, task: Task) -> int:
        """Open the rendezvous store on worker 0, since this process may be outside the workers' network.

        Return the store's port.
        """
        assert self._host.rendezvous is not None
        address, port = self._host.rendezvous
        self._processes[0].pipe.send(OpenStore(address, port, task.timeout_s, self._secret))
        if not self._processes[0].pipe.has_message(task.timeout_s):
            raise self._start_error(task, 0, f"did not open the rendezvous within {task.timeout_s:g} s")
        reply = self._receive(self._processes[0].pipe, 0)
        if not isinstance(reply, StoreOpened):
            raise self._start_error(task, 0, f"cannot open the rendezvous at {address}:{port}: {_reason(reply)}")
        return reply.port

    def _check_same_task(self, task: Task) -> None:
        """Raise an error if the pools of other hosts run a different task. By default there are no other pools."""
        del task

    def _order(self, index: int, task: Task) -> None:
        slot = self._host.slot(index)
        self._processes[index].activity.begin_task()
        self._processes[index].pipe.send(
            RunTask(
                task=task,
                rank=self._first_rank + index,
                local_rank=slot.local_rank,
                node=slot.node,
                job=self._job,
                master=self._master,
                address=slot.address,
                secret=self._secret,
                objects=self._objects,
            )
        )

    def _collect(self, task: Task, active: list[int], on_event: Callable[[Event], None]) -> dict[int, Any]:
        """Wait until all processes have replied, and return their results by rank.

        If a process dies, raises or is stopped, raise WorkerError at once. If a process only reports that it lost its
        peers, wait briefly for a message from the process that caused the loss, then raise WorkerError.
        """
        pipes: dict[MessageChannel, int] = {self._processes[index].pipe: index for index in active}
        results: dict[int, Any] = {}
        failures: list[Failure] = []
        files = FileReceiver(task)
        limits = Limits(task.timeout_s)
        self._num_oom_kills = num_oom_kills()
        deadline: float | None = None
        while pipes:
            left_s = limits.heartbeat_s if deadline is None else max(deadline - time.monotonic(), 0)
            ready: list[Any] = wait(cast(Any, list(pipes)), min(left_s, limits.heartbeat_s))
            for pipe in ready:
                rank = self._first_rank + pipes[pipe]
                reply = self._receive(pipe, pipes[pipe])
                if isinstance(reply, Emitted):
                    on_event(reply.event)
                    continue
                if isinstance(reply, Beat):
                    self._processes[pipes[pipe]].activity.load(reply.page)
                    continue
                if isinstance(reply, FilePiece) and rank == 0:
                    files.take(reply)
                    continue
                if isinstance(reply, Done):
                    results[rank] = reply.result
                elif isinstance(reply, Failed):
                    failures.append(Failure(rank, reply.kind, reply.message, reply.traceback))
                elif isinstance(reply, Failure):
                    failures.append(reply)
                else:
                    failures.append(Failure(rank, "raised", f"sent an unexpected message{self._location(pipes[pipe])}"))
                del pipes[pipe]
            unanswered = list(pipes.values())
            failures += self._missed_failures(task, unanswered, limits, is_urgent=bool(failures))
            if any(failure.kind != "comm" for failure in failures):
                break
            if failures and deadline is None:
                deadline = time.monotonic() + limits.cause_s
            if deadline is not None and time.monotonic() >= deadline:
                break
        if failures:
            watched = [self._watched(index, has_answered=index not in pipes.values()) for index in active]
            raise verdict(task, failures, watched)
        return results

    def _missed_failures(self, task: Task, unanswered: list[int], limits: Limits, *, is_urgent: bool) -> list[Failure]:
        """Return failures of processes that cannot report them: those that are dead or stopped.

        The pipe of a dead process stays open while a child of this process holds it. A stopped process may be
        continued, so it fails only after the time limit of an operation or, if `is_urgent`, of heartbeats, because
        peers have waited for so long already.
        """
        failures = []
        for index in unanswered:
            process = self._processes[index]
            if process.popen.poll() is not None and not process.pipe.has_message(0):
                failures.append(self._death(index))
            elif process.activity.read().silent_s > (limits.silent_s if is_urgent else limits.operation_s):
                watched = self._watched(index, has_answered=False)
                failures += [stopped_failure(task, watched)] if watched.is_stopped else []
        return failures

    def _watched(self, index: int, *, has_answered: bool) -> Watched:
        process = self._processes[index]
        return Watched(
            rank=self._first_rank + index,
            activity=process.activity.read(),
            is_stopped=self._host.is_forked and is_process_stopped(process.popen.pid),
            has_answered=has_answered,
            location=self._host.location(index),
            address=self._host.slot(index).address,
        )

    def _receive(self, pipe: MessageChannel, index: int) -> Reply | Failure:
        rank = self._first_rank + index
        try:
            return pipe.receive()
        except MessageError as error:
            return Failure(rank, "raised", f"sent {error}{self._location(index)}")
        except (EOFError, OSError):
            return self._death(index)

    def _death(self, index: int) -> Failure:
        process = self._processes[index]
        try:
            code = process.popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            code = process.popen.wait()
        is_out_of_memory = self._host.is_forked and num_oom_kills() > self._num_oom_kills
        message = death_message(
            code, self._host.hint(index, code), process.activity.read(), is_out_of_memory=is_out_of_memory
        )
        return Failure(self._first_rank + index, "died", message)

    def _gather_results(self, task: Task, results: dict[int, Any]) -> list[Any]:
        return [results[rank] for rank in range(task.num_workers)]


def _reason(reply: Reply | Failure) -> str:
    return reply.message if isinstance(reply, Failed | Failure) else "it sent an unexpected message"
