"""Hosts of worker processes: they start the processes of a pool, and say on which node and address each of them is."""

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

STOP_S = 2.0  # time between asking a process to end and killing it

Wrap = Callable[[list[str]], list[str]]  # adds a program in front of a command


@dataclass(frozen=True)
class WorkerSlot:
    """The node, local rank and address of one process."""

    node: str  # processes with the same name here share a host
    local_rank: int
    address: str  # address at which peers reach the process; empty: that of its interface towards the store


@dataclass
class WorkerProcess:
    """A worker process (or the ssh client connected to it), and the parent's end of the pipe to the worker."""

    popen: subprocess.Popen[bytes]
    pipe: MessageChannel
    ends_with_pipe: bool = False  # whether the process is ended by closing the pipe instead of by a signal

    def ask_to_end(self) -> None:
        if self.ends_with_pipe:
            self.pipe.close()
        else:
            self.popen.terminate()

    def end(self, deadline: float) -> None:
        """Wait for the process to end, and kill it if it has not ended by the deadline (in `time.monotonic`)."""
        try:
            self.popen.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.pipe.close()


class ProcessHost(ABC):
    """Base class for starting the processes of a pool. It is opened before they start, and closed after they ended."""

    # Whether every worker is a child of this process on this host, so that messages may be pickles.
    is_forked: bool = True
    # Address and port (0: a free one) of the store that worker 0 opens; None: this process opens it.
    rendezvous: tuple[str, int] | None = None

    def open(self) -> None:
        """Acquire resources such as emulated nodes, before processes start."""

    @abstractmethod
    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        """Start every process with the variables of `environment` added to its environment, and yield each.

        A process sends Ready through its pipe once it accepts orders.
        """

    @abstractmethod
    def slot(self, index: int) -> WorkerSlot:
        """Return the node, local rank and address of a process."""

    def location(self, index: int) -> str:
        """Return where a process is, for error messages, such as `on host alpha`. Return "" for this host."""
        del index
        return ""

    def hint(self, index: int, code: int) -> str:
        """Return text for an error message after the exit code: where the process ran, and why it may have ended."""
        del index, code
        return ""

    def close(self) -> None:
        """Release what `open` acquired."""


class LocalHost(ProcessHost):
    """Starts processes on this host. `wrap` can put a program such as `nice` or `numactl` in front of their command."""

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
    """Start a worker as a child of this process, with a socket pair as its pipe.

    `wrap` maps the worker's command to the command to run.
    """
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
    """Return the node of each process. If there are more processes than nodes, each node gets an even block of them."""
    if num_processes <= num_nodes:
        return list(range(num_processes))
    return [index * num_nodes // num_processes for index in range(num_processes)]
