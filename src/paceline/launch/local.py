"""Workers as processes of this host, started once and reused; several hosts, each started by hand, make one world."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

from paceline.comm.torch import make_store
from paceline.errors import RunError, UsageError, WorkerError
from paceline.launch.base import Launcher, Task
from paceline.launch.rendezvous import address_towards, collect, leave, publish
from paceline.train.context import Event

START_S = 120.0  # a loaded machine may take long to import torch
GRACE_S = 1.5  # after a peer's complaint, how long to wait for the culprit to show itself
STOP_S = 2.0  # between asking a worker to end and making it


@dataclass(frozen=True)
class Nodes:
    """Which of several hosts this one is."""

    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.num_nodes:
            raise UsageError(f"node rank {self.node_rank} is not one of 0 to {self.num_nodes - 1} (--nnodes)")
        if self.num_nodes > 1 and not 0 < self.master_port < 65536:
            raise UsageError(f"several nodes need a --master-port from 1 to 65535, not {self.master_port}")


@dataclass
class _Process:
    """A worker process and our end of its pipe."""

    popen: subprocess.Popen[bytes]
    pipe: Connection


@dataclass(frozen=True)
class _Failure:
    rank: int
    kind: str  # died, raised, comm
    message: str
    traceback: str = ""


class LocalLauncher(Launcher):
    """A pool of worker processes; a pool that lost one is started again for the next task."""

    name: ClassVar[str] = "local"

    def __init__(self, num_processes: int, nodes: Nodes | None = None) -> None:
        """Room for the workers and servers of the largest task."""
        self.nodes = nodes or Nodes()
        if num_processes % self.nodes.num_nodes:
            raise UsageError(
                f"{num_processes} workers cannot be split evenly over {self.nodes.num_nodes} nodes (servers included, "
                "where a strategy has some)"
            )
        self._per_node = num_processes // self.nodes.num_nodes
        self._first_rank = self._per_node * self.nodes.node_rank
        self.is_main = self.nodes.node_rank == 0
        self.can_go_on = self.nodes.num_nodes == 1  # other hosts would not know that a task has ended
        self._processes: list[_Process] = []
        self._store: Any = None
        self._port = 0
        self._job = 0

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        assert task.num_processes <= self._per_node * self.nodes.num_nodes, "the pool is too small for the task"
        self._start(task)
        self._job += 1
        self._agree_on(task)
        active = [index for index in range(self._per_node) if self._first_rank + index < task.num_processes]
        for index in active:
            self._give(index, task)
        try:
            results = self._listen(task, active, on_event)
        except BaseException:
            self.close()
            raise
        return self._bring_together(task, results)

    def close(self) -> None:
        for process in self._processes:
            process.popen.terminate()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.popen.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            process.pipe.close()
        self._processes = []

    def _start(self, task: Task) -> None:
        if self._store is None:
            self._store, self._port = self._meet(task.timeout_s)
        if any(process.popen.poll() is not None for process in self._processes):
            self.close()  # one died while there was nothing to do
        if self._processes:
            return
        environment = {**os.environ, "OMP_NUM_THREADS": str(task.threads)}
        for _ in range(self._per_node):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "paceline.launch.process", str(theirs.fileno())]
            # A session of its own: Ctrl-C reaches this process alone, which then ends the workers in order.
            popen = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True, stdin=subprocess.DEVNULL
            )
            theirs.close()
            pipe: Connection = Connection(ours.detach())
            self._processes.append(_Process(popen, pipe))
            pipe.send(sys.path)
        for index, process in enumerate(self._processes):
            rank = self._first_rank + index
            if not process.pipe.poll(START_S):
                self.close()
                raise WorkerError(rank, f"did not start within {START_S:g} s", who=task.name_of(rank))
            message = self._receive(process.pipe, rank)
            if message["kind"] != "ready":
                self.close()
                raise WorkerError(rank, f"could not start: {message['message']}", who=task.name_of(rank))

    def _meet(self, timeout_s: float) -> tuple[Any, int]:
        nodes = self.nodes
        if nodes.num_nodes == 1:
            store = make_store("127.0.0.1", 0, is_master=True, timeout_s=timeout_s)
            return store, store.port
        try:
            store = make_store(
                nodes.master_addr, nodes.master_port, is_master=nodes.node_rank == 0, timeout_s=timeout_s
            )
        except (RuntimeError, OSError) as error:
            where = f"{nodes.master_addr}:{nodes.master_port}"
            reason = str(error).partition("\n")[0]
            raise RunError(f"node {nodes.node_rank} cannot meet the others at {where}: {reason}") from None
        return store, nodes.master_port

    def _agree_on(self, task: Task) -> None:
        """Nodes that were started with different requests would wait for each other for ever."""
        nodes = self.nodes
        if nodes.num_nodes == 1:
            return
        mark = hashlib.sha256(
            repr((task.function.__name__, task.num_workers, task.num_servers, task.shared_arguments)).encode()
        )
        publish(self._store, f"request{self._job}/{nodes.node_rank}", mark.hexdigest())
        for other in range(nodes.num_nodes):
            try:
                theirs = collect(self._store, f"request{self._job}/{other}")
            except RuntimeError:
                raise RunError(f"node {other} did not appear within {task.timeout_s:g} s") from None
            if theirs != mark.hexdigest():
                leave(self._store, f"request{self._job}", is_host=self.is_main, num_others=nodes.num_nodes - 1)
                raise UsageError(f"node {nodes.node_rank} and node {other} were started with different requests")

    def _give(self, index: int, task: Task) -> None:
        address = "127.0.0.1" if self.nodes.num_nodes == 1 else address_towards(self.nodes.master_addr, self._port)
        order = {
            "task": task,
            "rank": self._first_rank + index,
            "local_rank": index,
            "node": str(self.nodes.node_rank),
            "job": self._job,
            "master": (self.nodes.master_addr, self._port),
            "address": address,
        }
        self._processes[index].pipe.send_bytes(pickle.dumps(order))

    def _listen(self, task: Task, active: list[int], on_event: Callable[[Event], None]) -> dict[int, Any]:
        """Results by rank; the first failure that is nobody else's fault ends the wait."""
        pipes = {self._processes[index].pipe: index for index in active}
        results: dict[int, Any] = {}
        failures: list[_Failure] = []
        deadline: float | None = None
        while pipes:
            ready = wait(list(pipes), None if deadline is None else max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = self._first_rank + pipes[pipe]
                message = self._receive(pipe, rank)
                if message["kind"] == "event":
                    on_event(message["event"])
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

    def _receive(self, pipe: Connection, rank: int) -> dict[str, Any]:
        try:
            message: dict[str, Any] = pipe.recv()
        except (EOFError, OSError):
            popen = self._processes[rank - self._first_rank].popen
            try:
                code = popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                popen.kill()
                code = popen.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            return {"kind": "died", "rank": rank, "message": f"died: its process {how}", "traceback": ""}
        message.setdefault("rank", rank)
        return message

    def _bring_together(self, task: Task, results: dict[int, Any]) -> list[Any]:
        nodes = self.nodes
        if nodes.num_nodes > 1:
            if not self.is_main:
                publish(self._store, f"results{self._job}/{nodes.node_rank}", results)
                # The store lives in node 0: stay until it has what it needs.
                self._store.get(f"results{self._job}/taken")
                leave(self._store, f"results{self._job}", is_host=False, num_others=nodes.num_nodes - 1)
                return []
            for other in range(1, nodes.num_nodes):
                theirs = collect(self._store, f"results{self._job}/{other}")
                results.update({int(rank): result for rank, result in theirs.items()})
            self._store.set(f"results{self._job}/taken", "1")
            leave(self._store, f"results{self._job}", is_host=True, num_others=nodes.num_nodes - 1)
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
