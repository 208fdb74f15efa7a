"""Emulated clusters: those that there are, and what was measured in one."""

from __future__ import annotations

from paceline.results.value import Value


class ClusterFigure(Value, frozen=True, kw_only=True):
    """One figure of a cluster. `asked` is None where nothing was asked for."""

    what: str  # bandwidth in bits per second, latency in seconds one way, cpus, memory in bytes
    where: str
    asked: float | None
    measured: float
    is_met: bool


class ClusterCheck(Value, frozen=True, kw_only=True):
    schema: int
    name: str
    asked: str
    passed: bool
    figures: list[ClusterFigure]


class ListedCluster(Value, frozen=True, kw_only=True):
    name: str
    asked: str
    addresses: list[str]
    is_ready: bool
    keeper: int  # process that keeps the cluster up
    parent: int | None  # process that the cluster ends with; None: it stays until `down`
    processes: list[int]
    cgroups: list[str]


class ClusterList(Value, frozen=True, kw_only=True):
    schema: int
    clusters: list[ListedCluster]
