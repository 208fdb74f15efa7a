"""Who starts the workers. A launcher runs one function on every worker and brings the results together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.train.context import Context, Event

Function = Callable[..., Any]  # (context, **arguments) -> plain values; a module-level function


@dataclass(frozen=True)
class Task:
    """What every worker does: a function, its arguments, and the comm that it does it on; and what servers do."""

    function: Function
    arguments: dict[str, Any] = field(default_factory=dict)
    num_workers: int = 1
    num_servers: int = 0  # their ranks come after the workers'
    serve: Function | None = None  # what servers do, with the same arguments
    comm: str = "torch"
    device: str = "cpu"
    threads: int = 1
    timeout_s: float = 60.0

    @property
    def shared_arguments(self) -> dict[str, Any]:
        """The arguments that must agree on all nodes: not where files go on each of them."""
        return {name: value for name, value in self.arguments.items() if name not in ("checkpoint", "folder")}

    @property
    def num_processes(self) -> int:
        return self.num_workers + self.num_servers

    def call(self, context: Context) -> Any:
        """The worker's part, or the server's, by its rank."""
        if context.rank < self.num_workers:
            return self.function(context, **self.arguments)
        assert self.serve is not None, "a task with servers says what they do"
        self.serve(context, **self.arguments)
        return None

    def name_of(self, rank: int) -> str:
        if rank < self.num_workers:
            return f"worker {rank}"
        return f"server {rank - self.num_workers} (rank {rank})"


class Launcher(ABC):
    """Starts workers once and gives them one task after the other. Use it as a context manager."""

    name: ClassVar[str] = ""
    is_main: bool = True  # whether this process writes results and talks to the user
    can_go_on: bool = False  # whether the next task can run after one whose worker failed

    @abstractmethod
    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        """The results of all workers in order of rank (an empty list where this process is not the main one)."""

    @abstractmethod
    def close(self) -> None:
        """End every process that this launcher started."""

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
