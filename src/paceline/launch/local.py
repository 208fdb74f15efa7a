"""Default launcher: workers are child processes on this host."""

from __future__ import annotations

from typing import ClassVar

from paceline.launch.base import Fit, Launcher, LaunchRequest
from paceline.launch.pool import ProcessPool
from paceline.launch.process_host import LocalHost


class LocalPool(ProcessPool):
    """Worker processes that are children of this process, on this host."""

    def __init__(self, num_processes: int) -> None:
        super().__init__(num_processes, LocalHost(num_processes))


class Local(Launcher):
    """Launcher for child processes on this host. It is used if no option selects another launcher."""

    name: ClassVar[str] = "local"

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        del request
        return Fit()

    def open(self, num_processes: int) -> LocalPool:
        return LocalPool(num_processes)
