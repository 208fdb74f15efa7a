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
    """What every worker does: a function, its arguments, and the comm that it does it on."""

    function: Function
    arguments: dict[str, Any] = field(default_factory=dict)
    num_workers: int = 1
    comm: str = "torch"
    device: str = "cpu"
    threads: int = 1
    timeout_s: float = 60.0

    @property
    def shared_arguments(self) -> dict[str, Any]:
        """The arguments that must agree on all nodes: not where files go on each of them."""
        return {name: value for name, value in self.arguments.items() if name != "checkpoint"}

    def call(self, context: Context) -> Any:
        return self.function(context, **self.arguments)


class Launcher(ABC):
    """Starts workers once and gives them one task after the other. Use it as a context manager."""

    name: ClassVar[str] = ""
    is_main: bool = True  # whether this process writes results and talks to the user

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
