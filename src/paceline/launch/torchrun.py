"""Workers that somebody else started, as torchrun does: this process is one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from paceline.comm.host import host_identity
from paceline.comm.torch import make_store, prefix_store
from paceline.errors import RunError, UsageError
from paceline.launch.base import Launcher, Task
from paceline.launch.rendezvous import (
    MoreComms,
    address_towards,
    collect,
    connect,
    device_for,
    leave,
    publish,
)
from paceline.train.context import Context, Event


class TorchrunLauncher(Launcher):
    """One worker per process, its place given by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

    name: ClassVar[str] = "torchrun"

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        try:
            self.rank, self.world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            self._host, self._port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            self._local_rank = int(environment.get("LOCAL_RANK", self.rank))
        except (KeyError, ValueError) as error:
            raise UsageError(f"RANK is set, but the rest of torchrun's environment is not in order: {error}") from None
        self._node = environment.get("GROUP_RANK") or host_identity()
        self.is_main = self.rank == 0
        # torchrun keeps a store of its own at that address; without it rank 0 opens one.
        self._opens_store = self.is_main and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store: Any = None
        self._job = 0

    @staticmethod
    def is_here(environment: Mapping[str, str] = os.environ) -> bool:
        """Whether this process was started by torchrun or by somebody who speaks its language."""
        return "RANK" in environment and "WORLD_SIZE" in environment

    @staticmethod
    def num_nodes(environment: Mapping[str, str] = os.environ) -> int:
        """How many hosts torchrun spread its workers over, as far as it says so."""
        local = int(environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"]))
        return -(-int(environment["WORLD_SIZE"]) // max(local, 1))

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        import torch

        if task.num_workers > self.world_size:
            raise UsageError(f"{task.num_workers} workers are asked for, but torchrun started {self.world_size}")
        torch.set_num_threads(task.threads)
        if self._store is None:
            store = make_store(self._host, self._port, is_master=self._opens_store, timeout_s=task.timeout_s)
            self._store = prefix_store(f"paceline{self._attempt}", store)
        self._job += 1
        results = self._take_part(task, on_event) if self.rank < task.num_workers else []
        # Workers without a part in this task, and those that are done early, wait for its end here.
        self._meet(f"end{self._job}")
        return results

    def close(self) -> None:
        self._store = None

    def _take_part(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        where: dict[str, Any] = {
            "job": self._job,
            "rank": self.rank,
            "local_rank": self._local_rank,
            "node": self._node,
            "address": address_towards(self._host, self._port),
        }
        comm = connect(task, self._store, **where)
        more = MoreComms(task, self._store, **where)
        result = task.call(Context(comm, device_for(task, self._local_rank), on_event, more.connect))
        comm.barrier()
        comm.close()
        publish(self._store, f"result{self._job}/{self.rank}", result)
        if not self.is_main:
            return []
        return [collect(self._store, f"result{self._job}/{rank}") for rank in range(task.num_workers)]

    def _meet(self, key: str) -> None:
        if self._store.add(key, 1) == self.world_size:
            self._store.set(f"{key}/all", "1")
        while True:
            try:
                self._store.get(f"{key}/all")
                break
            except RuntimeError as error:
                # A task may last longer than the time limit of one answer; a store that is gone does not.
                if "timeout" not in str(error).lower():
                    raise RunError(f"worker {self.rank} lost the meeting point: {error}") from None
        leave(self._store, key, is_host=self.is_main, num_others=self.world_size - 1)
