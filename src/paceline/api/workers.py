"""The launcher of a study that is called as a function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.errors import UsageError
from paceline.launch.base import Launcher, Request, WorkerPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import ClusterConfig
from paceline.train.given import packed

LauncherChoice = str | Request | Launcher | None  # a name or `file.py:Class`, what a command's options say, or ready


@dataclass(frozen=True)
class Workers:
    """How the workers of one call are started, and the objects that are sent to them."""

    choice: LauncherChoice
    hosts: str | Sequence[str] | None = None
    given: Sequence[str] = ()  # names of objects that the user gave

    def num_hosts(self, cluster: ClusterConfig) -> int:
        return launcher_for(self.choice, self.hosts, cluster).describe().num_hosts

    def launch(self, num_processes: int, cluster: ClusterConfig) -> WorkerPool:
        pool = launcher_for(self.choice, self.hosts, cluster).open(num_processes)
        if self.given:
            pool.give(packed(list(self.given)))
        return pool


def launcher_for(choice: LauncherChoice, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    """The launcher that a call asks for, checked; one that needs several callers is refused."""
    if isinstance(choice, Launcher):
        launcher = _ready(choice, hosts, cluster)
    else:
        launcher = choose_launcher(replace(_request(choice, hosts), cluster=cluster))
    if not launcher.starts_all:
        raise UsageError(
            f"launcher {launcher.name!r} runs the same program in several processes, and this function returns its "
            "result in one; use the command of the same name there"
        )
    return launcher


def _request(choice: str | Request | None, hosts: str | Sequence[str] | None) -> Request:
    if isinstance(choice, Request):
        if hosts is not None:
            raise UsageError("hosts are given twice: as hosts= and in the request of launcher=; leave one out")
        return choice
    names = hosts.split(",") if isinstance(hosts, str) else hosts
    given = None if names is None else tuple(name.strip() for name in names)
    if choice is None:
        return Request(hosts=given, environment={})  # a script that torchrun started may still compare on its own
    return Request(launcher=choice, hosts=given)


def _ready(launcher: Launcher, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    if hosts is not None:
        raise UsageError(f"hosts= conflicts with the {launcher.name} launcher given as launcher=; leave one out")
    if cluster.nodes and launcher.request.cluster != cluster:
        raise UsageError(
            f"the recipe emulates nodes ({cluster}), and the {launcher.name} launcher given as launcher= does not; "
            "leave one out"
        )
    launcher.check()
    return launcher
