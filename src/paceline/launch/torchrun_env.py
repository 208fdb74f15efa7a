"""Environment variables of torchrun: rank, world size and rendezvous address of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.comm.host_identity import host_identity
from paceline.comm.torch import make_store
from paceline.errors import RunError, UsageError


@dataclass(frozen=True, kw_only=True)
class TorchrunEnv:
    """The ranks of a process and the address of the rendezvous store."""

    rank: int
    world_size: int
    host: str
    port: int
    local_rank: int
    local_world_size: int = 1  # processes on this host
    node: str  # processes with the same name here share a host
    opens_store: bool
    attempt: str = "0"  # torchrun restarts all processes after a failure; the store keeps the keys of the last attempt

    @staticmethod
    def is_here(environment: Mapping[str, str] = os.environ) -> bool:
        """Whether torchrun, or a program that sets the same variables, started this process."""
        return "RANK" in environment and "WORLD_SIZE" in environment

    @staticmethod
    def from_environment(environment: Mapping[str, str] = os.environ) -> TorchrunEnv:
        try:
            rank, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            local_rank = int(environment.get("LOCAL_RANK", rank))
            local_world_size = max(int(environment.get("LOCAL_WORLD_SIZE", world_size)), 1)
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"RANK is set, but another variable of torchrun is missing or malformed: {error}"
            ) from None
        return TorchrunEnv(
            rank=rank,
            world_size=world_size,
            host=host,
            port=port,
            local_rank=local_rank,
            local_world_size=local_world_size,
            node=environment.get("GROUP_RANK") or host_identity(),
            # Rank 0 opens the store unless torchrun has opened one at that address.
            opens_store=rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )

    def open_store(self, timeout_s: float) -> Any:
        """Connect to the store of all processes; rank 0 opens it unless torchrun did."""
        try:
            return make_store(self.host, self.port, is_master=self.opens_store, timeout_s=timeout_s)
        except (RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"worker {self.rank} cannot reach the rendezvous at {self.host}:{self.port}: {reason}"
            ) from None
