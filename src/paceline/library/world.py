"""Rank and peers of a worker: from arguments, torch's process group or torchrun's environment."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paceline.comm import Comm, CommConfig, comms
from paceline.comm.placement import AUTO, choose_comm, host_identity
from paceline.comm.threads import ThreadsComm
from paceline.comm.torch import existing_world, prefix_store, wait_for
from paceline.errors import RunError, UsageError
from paceline.launch.rendezvous import address_towards, leave
from paceline.launch.torchrun import TorchrunEnv
from paceline.parsing import whole_number
from paceline.strategies import Strategy

# Stores stay open until the process exits: the next session's peers connect to the same address.
_stores: dict[tuple[str, int], Any] = {}


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, world size and rendezvous of a worker; opens connections to its peers."""

    rank: int = 0
    world_size: int = 1
    comm: str = AUTO
    timeout_s: float = 60.0
    store: Any = None
    nodes: tuple[str, ...] = ("0",)  # by rank
    local_rank: int = 0
    address: str = ""
    existing: Comm | None = None  # an open connection, used instead of everything above

    def connect(self, prefix: str, *, device: str = "cpu", strategy: Strategy | None = None) -> Comm:
        """Open a separate connection, on the comm that suits the workers, the device and the strategy."""
        if self.existing is not None:
            return self.existing
        if self.world_size == 1:
            return ThreadsComm.world(1)[0]
        name = self.comm
        if name == AUTO:
            name = choose_comm(num_workers=self.world_size, num_nodes=len(set(self.nodes)), device=device)
            if strategy is not None and strategy.unsupported(comms.get(name)):
                name = "torch"
        try:
            return comms.get(name).connect(
                CommConfig(
                    rank=self.rank,
                    world_size=self.world_size,
                    store=prefix_store(prefix, self.store),
                    node=self.nodes[self.rank],
                    local_rank=self.local_rank,
                    timeout_s=self.timeout_s,
                    address=self.address,
                    device=device,
                )
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"worker {self.rank} cannot connect to its peers: {reason}") from error

    def gather(self, key: str, text: str) -> list[str]:
        """Gather a text from every worker through the store, independently of all connections."""
        assert self.store is not None
        self.store.set(f"{key}/{self.rank}", text.encode())
        found = [wait_for(self.store, f"{key}/{peer}", self.timeout_s) for peer in range(self.world_size)]
        missing = [str(peer) for peer, value in enumerate(found) if value is None]
        if missing:
            raise RunError(
                f"worker {self.rank} got no answer from worker {', '.join(missing)} at {key} "
                f"within {self.timeout_s:g} s"
            )
        return [value.decode() for value in found if value is not None]

    def leave(self) -> None:
        """Leave the store; the process that hosts it waits until all others have left."""
        if self.store is not None:
            leave(self.store, "end", is_host=self.rank == 0, num_others=self.world_size - 1)


def find_world(
    *,
    session: int,
    comm: str,
    timeout_s: float,
    rank: int | None,
    world_size: int | None,
    local_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
) -> World:
    """Return this worker's world; without information about peers, a world of one."""
    if comm != AUTO:
        reason = comms.get(comm).unavailable()
        if reason:
            raise UsageError(f"comm {comm!r} cannot be used here: {reason}")
        if not comms.get(comm).between_processes:
            raise UsageError(
                f'comm {comm!r} connects threads of one process, but workers here are processes; use comm="auto"'
            )
    existing = existing_world()
    host, port, node = "", 0, host_identity()
    if rank is not None or world_size is not None:
        master_addr = master_addr or os.environ.get("MASTER_ADDR")
        master_port = master_port or _port(os.environ.get("MASTER_PORT"))
        arguments = {"rank": rank, "world_size": world_size, "master_addr": master_addr, "master_port": master_port}
        missing = [name for name, value in arguments.items() if value is None]
        if missing:
            raise UsageError(f"init() got only a part of the rendezvous; pass {' and '.join(missing)} too")
        assert rank is not None
        assert world_size is not None
        if not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} is not between 0 and {world_size - 1} (world_size {world_size})")
        host, port, attempt, opens = master_addr or "", master_port or 0, "0", rank == 0
    elif existing is not None:
        rank, world_size, _ = existing
        attempt, opens = "0", False
    elif TorchrunEnv.is_here():
        place = TorchrunEnv.from_environment()
        rank, world_size, host, port = place.rank, place.world_size, place.host, place.port
        node, attempt, opens = place.node, place.attempt, place.opens_store
        local_rank = place.local_rank if local_rank is None else local_rank
    else:
        rank, world_size, attempt, opens = 0, 1, "0", False
    if world_size == 1:
        return World(comm=comm, timeout_s=timeout_s)
    if host:
        rendezvous = TorchrunEnv(
            rank=rank, world_size=world_size, host=host, port=port, local_rank=0, node=node, opens_store=opens
        )
        raw = _stores.get((host, port)) or rendezvous.open_store(timeout_s)
        _stores[host, port] = raw
    else:
        assert existing is not None
        raw = existing[2]
    store = prefix_store(f"paceline-library{attempt}/{session}", raw)
    world = World(rank=rank, world_size=world_size, comm=comm, timeout_s=timeout_s, store=store)
    nodes = tuple(world.gather("init", node))
    here = Counter(nodes[:rank])[node]
    is_one_host = len(set(nodes)) == 1
    return World(
        rank=rank,
        world_size=world_size,
        comm=comm,
        timeout_s=timeout_s,
        store=store,
        nodes=nodes,
        local_rank=here if local_rank is None else local_rank,
        address=address_towards(host, port) if host else "127.0.0.1" if is_one_host else "",
    )


def _port(text: str | None) -> int | None:
    if not text:
        return None
    number = whole_number(text)
    if number is None:
        raise UsageError(f"MASTER_PORT is {text!r}, which is not a port number")
    return number
