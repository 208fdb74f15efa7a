"""What several tests share: worlds of threads and of processes that run the same function, and its result by rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from paceline.comm import Comm
from paceline.comm.shm import ShmComm
from paceline.comm.threads import ThreadsComm
from paceline.errors import UsageError
from paceline.launch.base import Task
from paceline.launch.local import LocalLauncher
from paceline.strategies import Guarantee, Strategy, StrategySpec, Worker, strategies
from paceline.train.context import Context

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent

# Pools that outlive a test: their processes are no leak.
SHARED_POOLS: list[LocalLauncher] = []


def ignore_event(event: dict[str, Any]) -> None:  # noqa: ARG001
    return None


def on_threads(world_size: int, function: Callable[..., Any], *, timeout_s: float = 20.0, **arguments: Any) -> list:
    """`function(context, **arguments)` on one thread per worker; the first error that is a cause is raised."""
    world = ThreadsComm.world(world_size, timeout_s)
    return _on_comms(world_size, world.__getitem__, function, timeout_s, arguments)


class Meeting:
    """A store for workers that are threads."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._arrival = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._arrival:
            self._values[key] = value.encode()
            self._arrival.notify_all()

    def get(self, key: str) -> bytes:
        with self._arrival:
            assert self._arrival.wait_for(lambda: key in self._values, self._timeout_s), f"nobody has set {key}"
            return self._values[key]


def on_shm_threads(
    world_size: int,
    function: Callable[..., Any],
    *,
    timeout_s: float = 20.0,
    meet_at_end: bool = True,
    **arguments: Any,
) -> list:
    """The same on shared memory: every thread maps it for itself, as a process would."""
    store = Meeting(timeout_s)

    def connect(rank: int) -> ShmComm:
        return ShmComm(rank, world_size, store, timeout_s=timeout_s)

    def meet(context: Context, **arguments: Any) -> Any:
        result = function(context, **arguments)
        if meet_at_end:
            context.comm.barrier()
        return result

    return _on_comms(world_size, connect, meet, timeout_s, arguments)


def _on_comms(
    world_size: int, connect: Callable[[int], Comm], function: Callable[..., Any], timeout_s: float, arguments: Any
) -> list:
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            comm = connect(rank)
            results[rank] = function(Context(comm), **arguments)
            comm.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s + 5
    while any(thread.is_alive() for thread in threads) and not errors:
        assert time.monotonic() < deadline, f"workers did not finish within {timeout_s:g} s"
        for thread in threads:
            thread.join(0.02)
    if errors:
        raise errors[0]
    return results


def on_pool(
    pool: LocalLauncher, world_size: int, function: Callable[..., Any], *, comm: str = "torch", **arguments: Any
) -> list[Any]:
    """`function(context, **arguments)` on worker processes, over gloo unless said otherwise."""
    return pool.run(Task(function, arguments, num_workers=world_size, comm=comm, timeout_s=20.0), ignore_event)


def exact_strategies() -> list[str]:
    return [name for name in strategies.classes if build(name).guarantee is Guarantee.EXACT]


def on_threads_supported(name: str) -> bool:
    return not build(name).unsupported(ThreadsComm)


def build(text: str) -> Strategy:
    return StrategySpec.parse(text).build()


def is_refused(text: str) -> bool:
    """Whether a strategy refuses its codec."""
    try:
        build(text).check(2, torch.optim.SGD)
    except UsageError:
        return True
    return False


def build_for(text: str, comm: Comm) -> Strategy:
    """A strategy set up on a comm with a model of one number, to call it by hand."""
    strategy, model = build(text), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy.setup(Worker(comm=comm, codec=strategy.codec, model=model, optimizer=optimizer))
    return strategy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child_processes() -> dict[int, psutil.Process]:
    """Living children of this process, without those of shared pools."""
    shared = {process.popen.pid for pool in SHARED_POOLS for process in pool._processes}
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if process.pid not in shared and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until_gone(pids: list[int], timeout_s: float = 15.0) -> list[int]:
    """Those of the processes that are still alive when the time is up."""
    deadline = time.monotonic() + timeout_s
    alive = pids
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if is_alive(pid)]
        time.sleep(0.02)
    return alive


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def python_processes(*commands: list[str], environments: list[dict[str, str]] | None = None) -> Iterator[list[Any]]:
    """Python processes that find what this one finds, ended when the block is left."""
    path = os.pathsep.join([str(TESTS), *(entry for entry in sys.path if entry)])
    started = []
    try:
        for index, command in enumerate(commands):
            environment = {**os.environ, "PYTHONPATH": path, **(environments[index] if environments else {})}
            started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=REPOSITORY,
                )
            )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.communicate()
