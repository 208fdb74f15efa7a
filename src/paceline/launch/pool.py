"""A pool of worker processes, started once and reused, wherever they stand."""

from __future__ import annotations

import pickle
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from paceline.comm.torch import make_store
from paceline.errors import WorkerError
from paceline.launch.base import Launcher, Task
from paceline.launch.delivery import Receiver
from paceline.launch.ground import STOP_S, Ground, WorkerProcess
from paceline.train.context import Event

START_S = 120.0  # a loaded machine may take long to import torch
GRACE_S = 1.5  # after a peer's complaint, how long to wait for the culprit to show itself


@dataclass(frozen=True)
class _Failure:
    rank: int
    kind: str  # died, raised, comm
    message: str
    traceback: str = ""


class PoolLauncher(Launcher):
    """Processes on some ground; a pool that lost one is started again for the next task."""

    can_go_on = True

    def __init__(self, num_processes: int, ground: Ground, *, first_rank: int = 0) -> None:
        """Room for the workers and servers of the largest task; the first process has that rank."""
        self._num_processes, self._ground, self._first_rank = num_processes, ground, first_rank
        self._is_open = False
        self._processes: list[WorkerProcess] = []
        self._store: Any = None
        self._master = ("127.0.0.1", 0)
        self._job = 0

    def __enter__(self) -> PoolLauncher:
        self._open()
        return self

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        try:
            self._start(task)
            self._job += 1
            self._agree_on(task)
            active = [index for index in range(self._num_processes) if self._first_rank + index < task.num_processes]
            for index in active:
                self._give(index, task)
            results = self._listen(task, active, on_event)
        except BaseException:
            self.close()
            raise
        return self._bring_together(task, results)

    def close(self) -> None:
        for process in self._processes:
            process.ask_to_end()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            process.end(deadline)
        self._processes = []
        if self._is_open:
            self._is_open = False
            self._ground.close()

    def _open(self) -> None:
        if not self._is_open:
            self._ground.open()
            self._is_open = True

    def _start(self, task: Task) -> None:
        if self._ground.meeting is None and self._store is None:
            self._store, port = self._meet(task.timeout_s)
            self._master = (self._master[0], port)
        if any(process.popen.poll() is not None for process in self._processes):
            self.close()  # one died while there was nothing to do
        if self._processes:
            return
        self._open()
        for process in self._ground.start({"OMP_NUM_THREADS": str(task.threads)}):
            self._processes.append(process)
        for index, process in enumerate(self._processes):
            if not process.pipe.poll(START_S):
                raise self._start_error(task, index, f"did not start within {START_S:g} s")
            message = self._receive(process.pipe, index)
            if message["kind"] != "ready":
                raise self._start_error(task, index, f"could not start: {message['message']}")
        if self._ground.meeting is not None:
            self._master = (self._ground.meeting[0], self._let_worker_0_keep_the_store(task))

    def _start_error(self, task: Task, index: int, sentence: str) -> WorkerError:
        rank = self._first_rank + index
        where = self._ground.who(index)
        return WorkerError(rank, f"{sentence}{where and f' ({where})'}", who=task.name_of(rank))

    def _meet(self, timeout_s: float) -> tuple[Any, int]:
        """A store in this process."""
        store = make_store("127.0.0.1", 0, is_master=True, timeout_s=timeout_s)
        return store, store.port

    def _let_worker_0_keep_the_store(self, task: Task) -> int:
        """This process may not be in the workers' network; worker 0 is. Its port."""
        assert self._ground.meeting is not None
        address, port = self._ground.meeting
        order = {"kind": "store", "address": address, "port": port, "timeout_s": task.timeout_s}
        self._processes[0].pipe.send_bytes(pickle.dumps(order))
        message = self._receive(self._processes[0].pipe, 0)
        if message["kind"] != "store":
            raise self._start_error(task, 0, f"cannot let the others meet at {address}:{port}: {message['message']}")
        return int(message["port"])

    def _agree_on(self, task: Task) -> None:
        """Whether all who take part were asked for the same; this process has asked them all."""
        del task

    def _give(self, index: int, task: Task) -> None:
        seat = self._ground.seat(index)
        order = {
            "kind": "task",
            "task": task,
            "rank": self._first_rank + index,
            "local_rank": seat.local_rank,
            "node": seat.node,
            "job": self._job,
            "master": self._master,
            "address": seat.address,
        }
        self._processes[index].pipe.send_bytes(pickle.dumps(order))

    def _listen(self, task: Task, active: list[int], on_event: Callable[[Event], None]) -> dict[int, Any]:
        """Results by rank; the first failure that is nobody else's fault ends the wait."""
        pipes = {self._processes[index].pipe: index for index in active}
        results: dict[int, Any] = {}
        failures: list[_Failure] = []
        files = Receiver(task)
        deadline: float | None = None
        while pipes:
            ready = wait(list(pipes), None if deadline is None else max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = self._first_rank + pipes[pipe]
                message = self._receive(pipe, pipes[pipe])
                if message["kind"] == "event":
                    on_event(message["event"])
                    continue
                if message["kind"] == "file":
                    files.take(message)
                    continue
                if message["kind"] == "result":
                    results[rank] = message["result"]
                else:
                    failures.append(_Failure(**{key: message[key] for key in ("rank", "kind", "message", "traceback")}))
                del pipes[pipe]
            if any(failure.kind != "comm" for failure in failures):
                break
            if failures and deadline is None:
                deadline = time.monotonic() + GRACE_S
        if failures:
            raise _verdict(task, failures, silent=[self._first_rank + index for index in pipes.values()])
        return results

    def _receive(self, pipe: Connection, index: int) -> dict[str, Any]:
        rank = self._first_rank + index
        try:
            message: dict[str, Any] = pipe.recv()
        except (EOFError, OSError):
            popen = self._processes[index].popen
            try:
                code = popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                code = popen.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            message = {
                "kind": "died",
                "message": f"died: its process {how}{self._ground.hint(index, code)}",
                "traceback": "",
            }
        message.setdefault("rank", rank)
        return message

    def _bring_together(self, task: Task, results: dict[int, Any]) -> list[Any]:
        return [results[rank] for rank in range(task.num_workers)]


def _verdict(task: Task, failures: list[_Failure], silent: list[int]) -> WorkerError:
    """Who is to blame: a worker that died or raised before those that merely missed it; else who stayed silent."""
    culprits = sorted((f for f in failures if f.kind != "comm"), key=lambda f: f.kind != "died")
    if culprits:
        first = culprits[0]
        return WorkerError(first.rank, first.message, first.traceback, who=task.name_of(first.rank))
    if silent:
        waiting = ", ".join(str(failure.rank) for failure in failures)
        message = f"did not answer in time; waiting for it: worker {waiting}"
        return WorkerError(silent[0], message, who=task.name_of(silent[0]))
    first = failures[0]
    return WorkerError(first.rank, f"lost its peers: {first.message}", first.traceback, who=task.name_of(first.rank))
