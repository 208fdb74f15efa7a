"""Launcher for processes started by torchrun, or by another program that sets torchrun's environment variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.comm.torch import make_store, prefix_store
from paceline.comm.worker_placement import host_identity
from paceline.errors import RunError, UsageError
from paceline.launch.base import Fit, Launcher, LaunchRequest, Place, Task, WorkerPool
from paceline.launch.rendezvous import TaskSlot, address_towards, collect, joined_task, leave, publish
from paceline.train.allocator import keep_memory
from paceline.train.context import Event


class Torchrun(Launcher):
    """Launcher that starts no processes: each process that torchrun started becomes a worker or a server.

    Servers have the last ranks. Ranks and rendezvous address come from torchrun's environment variables.
    """

    name: ClassVar[str] = "torchrun"
    starts_all: ClassVar[bool] = False

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return Fit("torchrun") if TorchrunEnv.is_here(request.environment) else None

    def check(self) -> None:
        if not TorchrunEnv.is_here(self.request.environment):
            raise UsageError(
                "--launcher torchrun needs RANK and WORLD_SIZE, which torchrun sets; start this command with torchrun"
            )
        TorchrunEnv.from_environment(self.request.environment)

    def open(self, num_processes: int) -> TorchrunPool:
        del num_processes  # torchrun has set the number of processes; each task is checked against it
        return TorchrunPool(TorchrunEnv.from_environment(self.request.environment))

    @property
    def is_main(self) -> bool:
        return TorchrunEnv.from_environment(self.request.environment).rank == 0

    def describe(self) -> Place:
        env = TorchrunEnv.from_environment(self.request.environment)
        return Place(self.name, -(-env.world_size // env.local_world_size))


class TorchrunPool(WorkerPool):
    """The processes that torchrun started, including this process. Rank 0 receives all results."""

    def __init__(self, env: TorchrunEnv) -> None:
        self.rank, self.world_size = env.rank, env.world_size
        self.is_main = self.rank == 0
        self._env = env
        self._store: Any = None
        self._job = 0

    def set_objects(self, objects: bytes) -> None:
        del objects  # every process runs the script that creates them

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        import torch

        if task.num_processes > self.world_size:
            servers = f" and {task.num_servers} servers" if task.num_servers else ""
            raise UsageError(
                f"{task.num_workers} workers{servers} are requested, but torchrun started {self.world_size} processes; "
                "change --workers or torchrun's --nproc-per-node"
            )
        torch.set_num_threads(task.threads)
        keep_memory()
        if self._store is None:
            store = self._env.open_store(task.timeout_s)
            self._store = prefix_store(f"paceline{self._env.attempt}", store)
        self._job += 1
        results = self._run_here(task, on_event) if self.rank < task.num_processes else []
        # Processes that take no part in the task, or finish early, wait until it has ended on all processes.
        self._barrier(f"end{self._job}")
        return results

    def close(self) -> None:
        self._store = None

    def _run_here(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        env = self._env
        slot = TaskSlot(
            job=self._job,
            rank=self.rank,
            local_rank=env.local_rank,
            node=env.node,
            address=address_towards(env.host, env.port),
        )
        with joined_task(task, self._store, slot, on_event) as context:
            result = task.call(context)
        if self.rank >= task.num_workers:
            return []
        publish(self._store, f"result{self._job}/{self.rank}", result)
        if not self.is_main:
            return []
        return [collect(self._store, f"result{self._job}/{rank}") for rank in range(task.num_workers)]

    def _barrier(self, key: str) -> None:
        if self._store.add(key, 1) == self.world_size:
            self._store.set(f"{key}/all", "1")
        while True:
            try:
                self._store.get(f"{key}/all")
                break
            except RuntimeError as error:
                # Keep waiting if a long task exceeds the store's time limit; other errors mean that the store is gone.
                if "timeout" not in str(error).lower():
                    raise RunError(f"worker {self.rank} lost the rendezvous store: {error}") from None
        leave(self._store, key, is_host=self.is_main, num_others=self.world_size - 1)


@dataclass(frozen=True, kw_only=True)
class TorchrunEnv:
    """Ranks of a process and address of the rendezvous store, as torchrun passes them in environment variables."""

    rank: int
    world_size: int
    host: str = ""  # empty: the process has no rendezvous address
    port: int = 0
    local_rank: int = 0
    local_world_size: int = 1  # processes on this host
    node: str = field(default_factory=host_identity)  # processes with the same value share a host
    opens_store: bool = False  # whether this process hosts the store
    attempt: str = "0"  # torchrun's count of restarts, for key prefixes: the store keeps the keys of earlier attempts

    @staticmethod
    def is_here(environment: Mapping[str, str] = os.environ) -> bool:
        """Return whether this process was started by torchrun or by another program that sets RANK and WORLD_SIZE."""
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
                f"RANK is set, but another variable of torchrun is missing or malformed: {error}; "
                "set WORLD_SIZE, MASTER_ADDR and MASTER_PORT too, or unset RANK"
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
        """Connect to the store that all processes share, and return it. Rank 0 opens it first if torchrun did not."""
        try:
            return make_store(self.host, self.port, is_master=self.opens_store, timeout_s=timeout_s)
        except (RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"worker {self.rank} cannot reach the rendezvous at {self.host}:{self.port}: {reason}; check that all "
                "workers have the address of the host of worker 0 and the same free port"
            ) from None
