"""Example of a user's launcher: one class, chosen with `--launcher tests/niced.py:Niced` or by a variable."""

from __future__ import annotations

from typing import ClassVar

from paceline.errors import UsageError
from paceline.launch.base import Fit, Launcher, LaunchRequest, Place
from paceline.launch.pool import ProcessPool
from paceline.launch.process_host import LocalHost


class Niced(Launcher):
    """Child processes with the priority of the environment variable NICENESS."""

    name: ClassVar[str] = "niced"

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return Fit("NICENESS") if "NICENESS" in request.environment else None

    def check(self) -> None:
        if not self._niceness.isdigit():
            raise UsageError(f"NICENESS is {self._niceness!r}, not a whole number from 0 to 19")

    def open(self, num_processes: int) -> ProcessPool:
        return ProcessPool(num_processes, LocalHost(num_processes, wrap=self._nicely))

    def describe(self) -> Place:
        return Place(self.name, words=f"with niceness {self._niceness}")

    @property
    def _niceness(self) -> str:
        return self.request.environment.get("NICENESS", "7")

    def _nicely(self, command: list[str]) -> list[str]:
        return ["nice", "-n", self._niceness, *command]
