"""Finding clusters by name, and building them from words such as `nodes=4,bandwidth=1gbit`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.cluster.living import Keeper, living_keepers, processes_inside
from paceline.cluster.opening import Cluster, open_cluster
from paceline.errors import RunError, UsageError, unknown
from paceline.recipe import ClusterConfig, parse_cluster
from paceline.results.cluster import ListedCluster


def read_config(words: str) -> ClusterConfig:
    changes = parse_cluster(words)
    return ClusterConfig(**{key.removeprefix("cluster."): value for key, value in changes.items()})


def find_cluster(name: str) -> Cluster:
    """A cluster that is there."""
    found = {keeper.plan.name: keeper for keeper in living_keepers() if keeper.is_ready}
    if not found:
        raise UsageError(f"there is no cluster {name!r}, nor any other; `paceline cluster up` makes one")
    if name not in found:
        raise unknown("cluster", name, found)
    return Cluster(found[name].plan, found[name].pid)


@contextmanager
def found_or_built(which: str, *, without_cpu_shares: bool) -> Iterator[Cluster]:
    """A kept cluster by its name; or one by its words, which is gone afterwards."""
    if "=" not in which:
        yield find_cluster(which)
        return
    try:
        with open_cluster(read_config(which), without_cpu_shares=without_cpu_shares) as cluster:
            yield cluster
    except KeyboardInterrupt:
        raise RunError("interrupted: the cluster is down") from None


def describe(keeper: Keeper) -> ListedCluster:
    """A cluster as `list` shows it."""
    plan = keeper.plan
    return ListedCluster(
        name=plan.name,
        asked=plan.asked,
        addresses=[plan.address(index) for index in range(len(plan.nodes))],
        is_ready=keeper.is_ready,
        keeper=keeper.pid,
        parent=plan.parent or None,
        processes=sorted(processes_inside(plan.name, but=keeper.pid)),
        cgroups=plan.group_folders(),
    )
