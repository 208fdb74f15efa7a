"""Base classes of launchers: the request, the launcher that handles it, and the pool of workers that it opens."""

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

DEFAULT_ADDRESS, DEFAULT_PORT = "127.0.0.1", 29400  # host 0 with --nnodes

Function = Callable[..., Any]  # (context, **arguments) -> plain values; a module-level function


@dataclass(frozen=True)
class Task:
    """The functions that workers and servers run, their arguments, and the comm that connects them."""

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
        """The arguments that must be equal on all hosts: all except paths of files."""
        return {name: value for name, value in self.arguments.items() if name not in ("checkpoint", "folder")}

    @property
    def num_processes(self) -> int:
        return self.num_workers + self.num_servers

    def call(self, context: Context) -> Any:
        """Run the worker's function or the server's, by rank."""
        if context.rank < self.num_workers:
            return self.function(context, **self.arguments)
        assert self.serve is not None, "a task with servers needs a function for them"
        self.serve(context, **self.arguments)
        return None

    def name_of(self, rank: int) -> str:
        """Return the name of a process for errors."""
        if rank < self.num_workers:
            return f"worker {rank}"
        return f"server {rank - self.num_workers} (rank {rank})"


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """The user's options for starting workers; every launcher reads the fields that it needs."""

    launcher: str = ""  # --launcher: a name or `file.py:Class`; empty: detected from the rest
    hosts: tuple[str, ...] | None = None  # --hosts; None: not given
    ssh: str = "ssh"  # client and its options; any program that takes a host and a command
    remote_python: str = ""  # the interpreter on other hosts; empty: the same path as here
    num_nodes: int = 1  # --nnodes: hosts on which the user starts the same command
    node_rank: int = 0
    master_addr: str = ""  # address of the first host for its peers; empty: the launcher's default
    master_port: int = 0  # port of the first host; 0: the launcher's default
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)

    def __post_init__(self) -> None:
        if self.hosts is None and (self.remote_python or self.ssh != "ssh"):
            option = "--remote-python" if self.remote_python else "--ssh"
            raise UsageError(f"{option} needs --hosts, which is not given; add --hosts or remove {option}")


@dataclass(frozen=True)
class Fit:
    """The reason why a launcher fits a request."""

    because: str = ""  # the option or program that selects it, such as --hosts; empty: it is the default


@dataclass(frozen=True)
class Place:
    """The hosts of a run's workers, for tables and stored runs."""

    launcher: str
    num_hosts: int = 1  # all emulated nodes are on one host
    words: str = ""  # "on alpha, beta"; empty for plain processes of this host


class WorkerPool(ABC):
    """Worker processes that run one task at a time. Use it as a context manager."""

    is_main: bool = True  # whether this process receives results, writes files and prints
    can_go_on: bool = False  # whether another task can run after one in which a worker failed

    @abstractmethod
    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        """Run a task and return the workers' results in order of rank; an empty list unless `is_main`."""

    @abstractmethod
    def close(self) -> None:
        """End every process that this pool started."""

    def set_objects(self, objects: bytes) -> None:
        """Send these pickled objects with every task; UsageError unless all workers are children of this process."""
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
    """Starts workers. A new launcher is one file in this package with one class."""

    name: ClassVar[str] = ""
    # Whether one process starts all workers; otherwise several processes run the same command.
    starts_all: ClassVar[bool] = True
    # Error messages for requests that also ask for another launcher, by its name.
    conflicts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request

    @property
    def is_main(self) -> bool:
        """Whether this process writes results and prints."""
        return True

    @property
    def because(self) -> str:
        """The option or program that selected this launcher."""
        fit = self.detect(self.request)
        return (fit.because if fit is not None else "") or f"--launcher {self.name}"

    @classmethod
    @abstractmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        """Return a Fit if the options or the environment of a request select this launcher."""

    def check(self) -> None:
        """Raise UsageError for mistakes in the request, before any process starts."""

    @abstractmethod
    def open(self, num_processes: int) -> WorkerPool:
        """Return a pool for that many workers and servers. It acquires resources when its `with` block begins."""

    def describe(self) -> Place:
        return Place(self.name)
