"""Rank, world size and connections of a worker of the library.

They come from the arguments of `paceline.init`, from torch's process group or from torchrun's environment variables.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from paceline.comm import Comm, CommConfig, comms
from paceline.comm.threads import ThreadsComm
from paceline.comm.torch import existing_world, prefix_store, wait_for
from paceline.comm.worker_placement import AUTO, choose_comm
from paceline.errors import RunError, UsageError
from paceline.launch.rendezvous import address_towards, leave
from paceline.launch.torchrun import TorchrunEnv
from paceline.parsing import whole_number
from paceline.strategies import Strategy

# Stores by address and port. They stay open until the process exits, since the next session uses the same address.
_stores: dict[tuple[str, int], Any] = {}


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, world size and rendezvous store of a worker, and what is needed to connect to the other workers."""

    rank: int = 0
    world_size: int = 1
    comm: str = AUTO  # name of the transport between workers
    timeout_s: float = 60.0
    store: Any = None  # torch store, through which workers find each other; None: there is one worker
    nodes: tuple[str, ...] = ("0",)  # host of each rank; workers with equal values share a host
    local_rank: int = 0
    address: str = ""  # at which peers reach this worker; empty: chosen by the transport
    existing: Comm | None = None  # an open comm to use instead of opening one; the other fields are then ignored

    def connect(self, prefix: str, *, device: str = "cpu", strategy: Strategy | None = None) -> Comm:
        """Open a new comm with the other workers. `prefix` separates its keys in the store from those of other comms.

        A comm is the transport between workers. If the field `comm` is "auto", the comm is chosen for the workers'
        hosts, the device and the strategy. If the field `existing` is set, that comm is returned instead.
        """
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
        """Exchange one string per worker through the store, and return the strings of all workers in order of rank.

        All workers must call this. `key` is the name of the library function that the user called. It is the prefix of
        the keys in the store, and is part of the error message. Raises RunError if the string of another worker does
        not arrive within `timeout_s`.
        """
        assert self.store is not None
        self.store.set(f"{key}/{self.rank}", text.encode())
        texts = [wait_for(self.store, f"{key}/{peer}", self.timeout_s) for peer in range(self.world_size)]
        missing = [str(peer) for peer, value in enumerate(texts) if value is None]
        if missing:
            raise RunError(
                f"worker {self.rank} got no answer from worker {', '.join(missing)} in paceline.{key}() within "
                f"{self.timeout_s:g} s; every worker must call it at about the same time"
            )
        return [value.decode() for value in texts if value is not None]

    def leave(self) -> None:
        """Report that this worker no longer uses the store. Worker 0, which hosts it, waits for the others' reports."""
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
    """Return the world of this worker from the arguments, else from torch.distributed, else from torchrun's variables.

    If none of them is given, the world has this worker only. `session` is the number of earlier sessions of this
    process. It is part of every key in the store, so sessions do not read each other's keys.
    """
    if comm != AUTO:
        reason = comms.get(comm).unavailable()
        if reason:
            raise UsageError(f'comm {comm!r} cannot be used here: {reason}; use comm="auto"')
        if not comms.get(comm).between_processes:
            raise UsageError(
                f'comm {comm!r} connects threads of one process, but workers here are processes; use comm="auto"'
            )
    existing = existing_world()
    env: TorchrunEnv | None = None
    if rank is not None or world_size is not None:
        env = _env_of_arguments(rank, world_size, master_addr, master_port)
    elif existing is not None:
        env = TorchrunEnv(rank=existing[0], world_size=existing[1])
    elif TorchrunEnv.is_here():
        env = TorchrunEnv.from_environment()
        local_rank = env.local_rank if local_rank is None else local_rank
    if env is None or env.world_size == 1:
        return World(comm=comm, timeout_s=timeout_s)
    if env.host:
        raw_store = _stores.get((env.host, env.port)) or env.open_store(timeout_s)
        _stores[env.host, env.port] = raw_store
    else:
        assert existing is not None
        raw_store = existing[2]
    store = prefix_store(f"paceline-library{env.attempt}/{session}", raw_store)
    world = World(rank=env.rank, world_size=env.world_size, comm=comm, timeout_s=timeout_s, store=store)
    nodes = tuple(world.gather("init", env.node))
    is_one_host = len(set(nodes)) == 1
    return replace(
        world,
        nodes=nodes,
        local_rank=nodes[: env.rank].count(env.node) if local_rank is None else local_rank,
        address=address_towards(env.host, env.port) if env.host else "127.0.0.1" if is_one_host else "",
    )


def _env_of_arguments(
    rank: int | None, world_size: int | None, master_addr: str | None, master_port: int | None
) -> TorchrunEnv:
    """Return rank, world size and store address from the arguments of `init`.

    An address or port that was not passed comes from MASTER_ADDR or MASTER_PORT. Raises UsageError if a value is
    missing or the rank is not below the world size.
    """
    host = master_addr or os.environ.get("MASTER_ADDR")
    port = master_port or _port(os.environ.get("MASTER_PORT"))
    arguments = {"rank": rank, "world_size": world_size, "master_addr": host, "master_port": port}
    if rank is None or world_size is None or host is None or port is None:
        missing = [name for name, value in arguments.items() if value is None]
        raise UsageError(f"init() got only a part of the rendezvous; pass {' and '.join(missing)} too")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"init() got rank={rank} with world_size={world_size}; pass a rank from 0 to {world_size - 1}, a different "
            "one on every worker"
        )
    return TorchrunEnv(rank=rank, world_size=world_size, host=host, port=port, opens_store=rank == 0)


def _port(text: str | None) -> int | None:
    if not text:
        return None
    number = whole_number(text)
    if number is None:
        raise UsageError(f"MASTER_PORT is {text!r}, which is not a port number; set it to a number from 1 to 65535")
    return number
