"""The torch.distributed backend `paceline`, which runs DDP and other collectives in shared memory where possible.

The backend is registered as soon as both torch and paceline are imported, in either order. So that registration takes
little time, this module imports other modules of paceline only when a group is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from paceline.comm.base import Comm

NAME = "paceline"


def register() -> None:
    """Register the backend with torch.distributed, if torch was built with torch.distributed."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> Any:
    """Create a process group that uses shared memory if at least two workers share a host, else gloo.

    Gloo is also used if a worker cannot use shared memory or a host has more than MAX_WORKERS workers.
    """
    del backend_options
    rank, world_size, timeout = options.group_rank, options.group_size, options.timeout
    # A store may outlive its group: a later group of the same name must not read the addresses of an earlier one.
    generation = options.store.add(f"generation/{rank}", 1)
    store = dist.PrefixStore(f"{NAME}{generation}", options.store)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size, timeout=timeout)
    ranks = list(options.global_ranks_in_group) or list(range(world_size))
    comm = _connect(store, rank, world_size, timeout.total_seconds(), ranks)
    if comm is None:
        return gloo
    from paceline.comm.process_group import CommGroup

    return CommGroup(comm, gloo)


def _connect(store: Any, rank: int, world_size: int, timeout_s: float, ranks: Sequence[int]) -> Comm | None:
    from paceline.comm.hierarchical import HierarchicalComm
    from paceline.comm.shm import MAX_WORKERS, ShmComm
    from paceline.comm.worker_placement import host_identity

    if world_size == 1:
        return None
    # A worker that cannot share memory publishes an empty host name; then all workers use gloo.
    store.set(f"host/{rank}", "" if ShmComm.unavailable() else host_identity())
    hosts = [store.get(f"host/{peer}").decode() for peer in range(world_size)]
    most_per_host = max(hosts.count(host) for host in hosts)
    if "" in hosts or most_per_host == 1 or most_per_host > MAX_WORKERS:
        return None
    if most_per_host == world_size:
        return ShmComm(rank, world_size, store, timeout_s=timeout_s, names=ranks)
    return HierarchicalComm(rank, world_size, store, node=hosts[rank], timeout_s=timeout_s, names=ranks)
