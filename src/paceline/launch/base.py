"""Base classes for starting worker processes: the user's request, the launcher that serves it, and the process pool.

A comm is the transport between the processes (torch with gloo or nccl, shared memory and others). Its name selects a
class of `paceline.comm`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import UsageError
from paceline.recipe import ClusterConfig

if TYPE_CHECKING:  # these import torch, which takes seconds
    from paceline.train.context import Context, Event

DEFAULT_ADDRESS, DEFAULT_PORT = "127.0.0.1", 29400  # of host 0, with --nnodes

Function = Callable[..., Any]  # a module-level function: (context, **arguments) -> plain values


@dataclass(frozen=True)
class Task:
    """A task for a pool of processes: the functions to run, their arguments, and the comm that connects the processes.

    Workers run `function`. Servers run `serve`: they hold the parameters for strategies with a parameter server.
    """

    function: Function
    arguments: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int = 1
    num_servers: int = 0  # their ranks follow the workers'
    serve: Function | None = None  # the servers' function; takes the same arguments
    comm: str = "torch"
    device: str = "cpu"
    threads: int = 1
    timeout_s: float = 60.0

    @property
    def shared_arguments(self) -> Mapping[str, Any]:
        """The arguments that must be equal on all hosts: all except paths, which only the main process has."""
        paths = ("checkpoint", "checkpoints", "folder")
        return {name: value for name, value in self.arguments.items() if name not in paths}

    @property
    def num_processes(self) -> int:
        return self.num_workers + self.num_servers

    def call(self, context: Context) -> Any:
        """Run the workers' function and return its result, or run the servers' function and return None.

        The rank of this process determines which of the two is run.
        """
        if context.rank < self.num_workers:
            return self.function(context, **self.arguments)
        assert self.serve is not None, "a task with servers needs a function for them"
        self.serve(context, **self.arguments)
        return None

    def name_of(self, rank: int) -> str:
        """Return the name of a process for error messages, such as `worker 2`."""
        if rank < self.num_workers:
            return f"worker {rank}"
        return f"server {rank - self.num_workers} (rank {rank})"


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The user's options for starting workers. Each launcher reads only the options that it supports."""

    launcher: str = ""  # --launcher: a name or `file.py:Class`; empty: detected from the other options
    hosts: tuple[str, ...] | None = None  # --hosts; None: not given
    ssh: str = "ssh"  # --ssh: client and its options; any program that takes a host and a command
    remote_python: str = ""  # --remote-python: interpreter on other hosts; empty: the path of this one
    num_nodes: int = 1  # --nnodes: hosts on which the user starts the same command
    node_rank: int = 0
    master_addr: str = ""  # address at which other hosts reach the first host; empty: the launcher's default
    master_port: int = 0  # port of the first host; 0: the launcher's default
    token_file: str = ""  # --token-file: file with the secret that all hosts share, with --nnodes
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def __post_init__(self) -> None:
        if self.hosts is None and (self.remote_python or self.ssh != "ssh"):
            option = "--remote-python" if self.remote_python else "--ssh"
            raise UsageError(f"{option} needs --hosts, which is not given; add --hosts or remove {option}")
        if self.token_file and self.num_nodes < 2:
            raise UsageError(
                "--token-file needs --nnodes, which is not given: workers that this command starts get a secret from it"
            )


@dataclass(frozen=True)
class Fit:
    """Result of `Launcher.detect` if a request selects the launcher, with the reason for the selection."""

    because: str = ""  # the option or program that selects the launcher, such as --hosts; empty: it is the default


@dataclass(frozen=True)
class Place:
    """Description of the hosts on which a run's workers are, for tables and stored runs."""

    launcher: str
    num_hosts: int = 1  # emulated nodes are all on one host, and count as one
    words: str = ""  # names or properties of the hosts, such as "on alpha, beta"; may be empty


class WorkerPool(ABC):
    """Worker processes that run one task at a time. A pool is a context manager."""

    is_main: bool = True  # whether this process receives results, writes files and prints
    can_go_on: bool = False  # whether another task can run after one in which a worker failed

    @abstractmethod
    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        """Run a task, and return the workers' results in order of rank. Return an empty list if not `is_main`.

        `on_event` is called with each progress event of a worker.
        """

    @abstractmethod
    def close(self) -> None:
        """End all processes that this pool started."""

    def set_objects(self, objects: bytes) -> None:
        """Send `objects` (pickled models, data and losses) with every later task.

        Raises UsageError if the pool has workers on other hosts, since those accept no pickles.
        """
        del objects
        raise UsageError(
            "models, data and losses passed as objects cannot be sent to workers on other hosts; "
            "put them into a file that exists on every host and pass its name: 'file.py:factory'"
        )

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Launcher(ABC):
    """Base class of launchers, which start workers. To add a launcher, add a file with one subclass to this package."""

    name: ClassVar[str] = ""
    # Whether this process starts all workers. If not, the same command is started several times, by hand or torchrun.
    starts_all: ClassVar[bool] = True
    # Error messages for requests that select this launcher and another one. The keys are names of other launchers.
    conflicts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request

    @property
    def is_main(self) -> bool:
        """Whether this process writes results and prints."""
        return True

    @property
    def because(self) -> str:
        """The option or program that selected this launcher, such as --hosts, for error messages."""
        fit = self.detect(self.request)
        return (fit.because if fit is not None else "") or f"--launcher {self.name}"

    @classmethod
    @abstractmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        """Return a Fit if the options or the environment of a request select this launcher, else None."""

    def check(self) -> None:
        """Raise UsageError if the request has a mistake. Called before any process starts."""

    @abstractmethod
    def open(self, num_processes: int) -> WorkerPool:
        """Return a pool of `num_processes` workers and servers. Its `with` block acquires and releases resources."""

    def describe(self) -> Place:
        return Place(self.name)
