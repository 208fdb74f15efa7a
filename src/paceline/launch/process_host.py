"""Hosts of worker processes: they start the processes of a pool, and define their nodes and rendezvous address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from paceline.launch.messages import MessageChannel, PickleChannel

STOP_S = 2.0  # between asking a process to end and killing it

Wrap = Callable[[list[str]], list[str]]  # adds a program in front of a command


@dataclass(frozen=True)
class WorkerSlot:
    """The node, local rank and address of one process."""

    node: str  # processes with the same name here share a host
    local_rank: int
    address: str  # its address for peers; empty: that of the interface towards the store


@dataclass
class WorkerProcess:
    """A worker process, or the ssh client connected to it, and the parent's end of its pipe."""

    popen: subprocess.Popen[bytes]
    pipe: MessageChannel
    ends_with_pipe: bool = False  # end it by closing the pipe instead of a signal

    def ask_to_end(self) -> None:
        if self.ends_with_pipe:
            self.pipe.close()
        else:
            self.popen.terminate()

    def end(self, deadline: float) -> None:
        """Wait until the deadline for the process to end, then kill it."""
        try:
            self.popen.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.pipe.close()


class ProcessHost(ABC):
    """Starts the processes of a pool. Opened before they start, closed after they ended."""

    # Whether every process is a child of this one on this host, so that messages may be pickles.
    is_forked: bool = True
    # Address and port (0: a free one) of the store that worker 0 opens; None: this process opens it.
    rendezvous: tuple[str, int] | None = None

    def open(self) -> None:
        """Acquire resources before processes start."""

    @abstractmethod
    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        """Start every process with these variables added to the environment; each sends Ready through its pipe."""

    @abstractmethod
    def slot(self, index: int) -> WorkerSlot:
        """Return the slot of a process."""

    def location(self, index: int) -> str:
        """Return the host or node of a process for errors, such as `on host alpha`; empty for this host."""
        del index
        return ""

    def hint(self, index: int, code: int) -> str:
        """Return the likely reason for the end of a process, to be added to its exit code."""
        del index, code
        return ""

    def close(self) -> None:
        """Release what `open` acquired."""


class LocalHost(ProcessHost):
    """Processes on this host; `wrap` can put a program such as `nice` or `numactl` in front of their command."""

    def __init__(
        self, num_processes: int, *, node: str = "0", address: str = "127.0.0.1", wrap: Wrap | None = None
    ) -> None:
        self._num_processes, self._node, self._address, self._wrap = num_processes, node, address, wrap or list

    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        for _ in range(self._num_processes):
            yield start_process({**os.environ, **environment}, self._wrap)

    def slot(self, index: int) -> WorkerSlot:
        return WorkerSlot(self._node, index, self._address)


def start_process(environment: dict[str, str], wrap: Wrap = list) -> WorkerProcess:
    """Start a worker as a child of this process, with a socket pair as its pipe; `wrap` changes its command."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "paceline.launch.worker_process", str(theirs.fileno())]
    # In a new session Ctrl-C does not reach the worker; this process ends it in order.
    popen = subprocess.Popen(
        wrap(command),
        pass_fds=[theirs.fileno()],
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    connection: Connection[Any, Any] = Connection(ours.detach())
    connection.send(sys.path)
    return WorkerProcess(popen, PickleChannel(connection))


def spread(num_processes: int, num_nodes: int) -> list[int]:
    """Return the node of each process: one process per node, or even blocks if there are fewer nodes."""
    if num_processes <= num_nodes:
        return list(range(num_processes))
    return [index * num_nodes // num_processes for index in range(num_processes)]
