"""Starting the worker processes of a pool: the base class ProcessHost, and its implementation for this host.

Other subclasses start processes over ssh (`ssh.py`) and on emulated nodes (`emulated.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from paceline.interrupts import deferred
from paceline.launch.messages import MessageChannel, PickleChannel
from paceline.limits import Limits
from paceline.worker_activity import Activity, new_page

# Argument of a worker process: the kernel kills the process when the thread that started it ends (parent-death signal).
END_WITH_PARENT = "--end-with-parent"

Wrap = Callable[[list[str]], list[str]]  # adds a program in front of a command


@dataclass(frozen=True)
class WorkerSlot:
    """Node, local rank and network address of one worker process."""

    node: str  # processes with the same name here share a host
    local_rank: int
    address: str  # at which peers reach the process; empty: address of its network interface towards the store


@dataclass
class WorkerProcess:
    """A worker process (or the ssh client connected to it), and the parent's end of the pipe to the worker."""

    popen: subprocess.Popen[bytes]
    pipe: MessageChannel
    activity: Activity = field(default_factory=Activity)  # what the worker is doing
    ends_with_pipe: bool = False  # whether the process is ended by closing the pipe instead of by a signal

    def ask_to_end(self) -> None:
        if self.ends_with_pipe:
            self.pipe.close()
        else:
            self.popen.terminate()
            self.popen.send_signal(signal.SIGCONT)  # a stopped process would not end

    def end(self, deadline: float) -> None:
        """Wait for the process to end, and kill it if it has not ended by the deadline (in `time.monotonic`)."""
        try:
            self.popen.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.pipe.close()


class ProcessHost(ABC):
    """Base class for starting the processes of a pool.

    The pool calls `open` before it starts the processes, and `close` after they have ended.
    """

    # Whether every worker is a child of this process on this host, so that messages may be pickles.
    is_forked: bool = True
    # Address and port (0: a free one) of the rendezvous store that worker 0 opens. None: this process opens the store.
    rendezvous: tuple[str, int] | None = None
    limits: Limits = Limits()  # of the task for which processes start

    def open(self) -> None:
        """Acquire resources such as emulated nodes, before processes start."""

    @abstractmethod
    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        """Start all processes, each with the variables of `environment` added to its own, and yield them one by one.

        A process sends Ready through its pipe once it accepts orders.
        """

    @abstractmethod
    def slot(self, index: int) -> WorkerSlot:
        """Return the node, local rank and address of the process with this index in the pool."""

    def location(self, index: int) -> str:
        """Return the location of a process for error messages, such as `on host alpha`. Return "" for this host."""
        del index
        return ""

    def hint(self, index: int, code: int) -> str:
        """Return text to append to the error message about a dead process. The default is an empty string.

        Subclasses return the location of the process and, if known, the likely cause of the exit code `code`.
        """
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
    # In a new session Ctrl-C does not reach the worker. This process handles Ctrl-C and then ends the worker.
    with deferred():
        activity, page = new_page()
        command = [sys.executable, "-m", "paceline.launch.worker_process", str(theirs.fileno()), str(page)]
        if threading.current_thread() is threading.main_thread():  # it lives as long as this process
            command.append(END_WITH_PARENT)
        popen = subprocess.Popen(
            wrap(command),
            pass_fds=[theirs.fileno(), page],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        os.close(page)
        connection: Connection[Any, Any] = Connection(ours.detach())
    connection.send(sys.path)
    return WorkerProcess(popen, PickleChannel(connection), activity)


def spread(num_processes: int, num_nodes: int) -> list[int]:
    """Return the node of each process. If there are more processes than nodes, each node gets consecutive processes.

    The numbers of processes per node differ by at most one.
    """
    if num_processes <= num_nodes:
        return list(range(num_processes))
    return [index * num_nodes // num_processes for index in range(num_processes)]
