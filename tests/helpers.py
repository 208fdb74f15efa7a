"""Shared test helpers: run a function on worker threads or processes and return its results by rank."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

import jobs
from paceline.comm import Comm
from paceline.comm.shm import ShmComm
from paceline.comm.threads import ThreadsComm
from paceline.errors import UsageError
from paceline.launch.base import Task
from paceline.launch.local import LocalPool
from paceline.strategies import Guarantee, Strategy, StrategySpec, Worker, available_strategies
from paceline.strategies.capabilities import servers_of
from paceline.train.context import Context

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
PATIENCE_S = 60.0  # timeout of workers without a fault, on a machine that may be busy

# Pools that outlive a test: their processes are no leak.
SHARED_POOLS: list[LocalPool] = []


def ignore_event(event: dict[str, Any]) -> None:  # noqa: ARG001
    return None


def on_threads(
    world_size: int, function: Callable[..., Any], *, timeout_s: float = PATIENCE_S, **arguments: Any
) -> list:
    """Run `function(context, **arguments)` on one thread per worker; raise the first error that caused the others.

    If the arguments name a strategy with servers, these run on threads too.
    """
    num_servers = num_servers_of(world_size, arguments)
    wide = ThreadsComm.world(world_size + num_servers, timeout_s) if num_servers else [None] * world_size
    task = Task(function, arguments, num_workers=world_size, num_servers=num_servers, serve=jobs.serve)
    contexts = [Context(comm, servers=wide[comm.rank]) for comm in ThreadsComm.world(world_size, timeout_s)]
    contexts += [Context(comm, servers=comm) for comm in wide[world_size:]]
    return run_together([partial(task.call, context) for context in contexts], timeout_s)[:world_size]


class Meeting:
    """A rendezvous store for workers on threads."""

    def __init__(self, timeout_s: float = PATIENCE_S) -> None:
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
    timeout_s: float = PATIENCE_S,
    meet_at_end: bool = True,
    **arguments: Any,
) -> list:
    """Run `function` on threads over shared memory, which every thread maps separately, as processes do."""
    store = Meeting(PATIENCE_S)

    def work(rank: int) -> Any:
        comm = ShmComm(rank, world_size, store, timeout_s=PATIENCE_S)
        comm._waiter.timeout_s = comm._helper_waiter.timeout_s = (
            timeout_s  # the limit of operations, not of the rendezvous
        )
        result = function(Context(comm), **arguments)
        if meet_at_end:
            comm.barrier()
        comm.close()
        return result

    return run_together([partial(work, rank) for rank in range(world_size)], timeout_s)


def run_together(jobs_of_workers: list[Callable[[], Any]], timeout_s: float) -> list:
    """Run each job on its own thread and return the results."""
    results: list[Any] = [None] * len(jobs_of_workers)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            results[index] = jobs_of_workers[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(results))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s + PATIENCE_S
    while any(thread.is_alive() for thread in threads) and not errors:
        assert time.monotonic() < deadline, f"workers did not finish within {timeout_s:g} s"
        for thread in threads:
            thread.join(0.02)
    if errors:
        raise errors[0]
    return results


def on_pool(
    pool: LocalPool, world_size: int, function: Callable[..., Any], *, comm: str = "torch", **arguments: Any
) -> list[Any]:
    """Run `function(context, **arguments)` on worker processes, over gloo by default."""
    task = Task(
        function,
        arguments,
        num_workers=world_size,
        num_servers=num_servers_of(world_size, arguments),
        serve=jobs.serve,
        comm=comm,
        timeout_s=PATIENCE_S,
    )
    return pool.run(task, ignore_event)


def num_servers_of(world_size: int, arguments: dict[str, Any]) -> int:
    return servers_of(build(arguments["strategy"]), world_size) if "strategy" in arguments else 0


def exact_strategies() -> list[str]:
    return [name for name in available_strategies() if build(name).guarantee is Guarantee.EXACT]


def exact_without_servers() -> list[str]:
    """Return the exact strategies that need no servers."""
    return [name for name in exact_strategies() if not servers_of(build(name), 2)]


def on_threads_supported(name: str) -> bool:
    return not build(name).unsupported(ThreadsComm)


def build(text: str) -> Strategy:
    return StrategySpec.parse(text).build()


def is_possible(text: str) -> bool:
    """Return whether the strategy supports the codec."""
    try:
        build(text).check(2, torch.optim.SGD)
    except UsageError:
        return False
    return True


def build_for(text: str, comm: Comm) -> Strategy:
    """Return a strategy that is set up on a comm with a one-parameter model."""
    strategy, model = build(text), nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy.setup(Worker(comm=comm, codec=strategy.codec, model=model, optimizer=optimizer))
    return strategy


def free_port() -> int:
    """Return a free port below the ephemeral range, so that the system does not assign it to another process."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def child_processes() -> dict[int, psutil.Process]:
    """Return the running children of this process, without those of shared pools."""
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
    """Wait for processes to end; return those that still run after `timeout_s`."""
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
    """Start Python processes with the import path of this one; end them with the block."""
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
