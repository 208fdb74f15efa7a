"""Workers that torchrun, or a program that sets the same variables, has started: this process is one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from paceline.comm.torch import prefix_store
from paceline.errors import RunError, UsageError
from paceline.launch.base import Fit, Launcher, LaunchRequest, Place, Task, WorkerPool
from paceline.launch.rendezvous import (
    MoreComms,
    TaskSlot,
    address_towards,
    collect,
    connect,
    device_for,
    leave,
    part,
    publish,
)
from paceline.launch.torchrun_env import TorchrunEnv
from paceline.train.allocator import keep_memory
from paceline.train.context import Context, Event


class Torchrun(Launcher):
    """One worker or server per process, servers last, placed by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

    name: ClassVar[str] = "torchrun"
    starts_all: ClassVar[bool] = False

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return Fit("torchrun") if TorchrunEnv.is_here(request.environment) else None

    def check(self) -> None:
        if not TorchrunEnv.is_here(self.request.environment):
            raise UsageError(
                "--launcher torchrun needs RANK and WORLD_SIZE, which torchrun sets: start this command by it"
            )
        TorchrunEnv.from_environment(self.request.environment)

    def open(self, num_processes: int) -> TorchrunPool:
        del num_processes  # decided by torchrun; compared with each task
        return TorchrunPool(TorchrunEnv.from_environment(self.request.environment))

    @property
    def is_main(self) -> bool:
        return TorchrunEnv.from_environment(self.request.environment).rank == 0

    def describe(self) -> Place:
        meeting = TorchrunEnv.from_environment(self.request.environment)
        return Place(self.name, -(-meeting.world_size // meeting.local_world_size))


class TorchrunPool(WorkerPool):
    """This process takes part in every task; rank 0 receives the results of all."""

    def __init__(self, meeting: TorchrunEnv) -> None:
        self.rank, self.world_size = meeting.rank, meeting.world_size
        self.is_main = self.rank == 0
        self._meeting = meeting
        self._store: Any = None
        self._job = 0

    def give(self, objects: bytes) -> None:
        del objects  # every process was given the same objects by its own script

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        import torch

        if task.num_processes > self.world_size:
            servers = f" and {task.num_servers} servers" if task.num_servers else ""
            raise UsageError(
                f"{task.num_workers} workers{servers} are asked for, but torchrun started {self.world_size}"
            )
        torch.set_num_threads(task.threads)
        keep_memory()
        if self._store is None:
            store = self._meeting.open_store(task.timeout_s)
            self._store = prefix_store(f"paceline{self._meeting.attempt}", store)
        self._job += 1
        results = self._take_part(task, on_event) if self.rank < task.num_processes else []
        # Processes without a part in this task, and those that are done early, wait for its end.
        self._meet(f"end{self._job}")
        return results

    def close(self) -> None:
        self._store = None

    def _take_part(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        meeting = self._meeting
        seat = TaskSlot(
            job=self._job,
            rank=self.rank,
            local_rank=meeting.local_rank,
            node=meeting.node,
            address=address_towards(meeting.host, meeting.port),
        )
        comm, wide = connect(task, self._store, seat)
        more = MoreComms(task, self._store, seat)
        result = task.call(Context(comm, device_for(task, meeting.local_rank), on_event, more.connect, wide))
        part(task, self.rank, comm, wide)
        if self.rank >= task.num_workers:
            return []
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
