"""Launcher for --nnodes: the user starts the same command on every host, each with its own --node-rank."""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar

from paceline.authenticated_channel import ChannelError, WrongSecret
from paceline.comm.authenticated_store import AuthenticatedStore, open_store
from paceline.errors import RunError, UsageError
from paceline.launch.base import DEFAULT_ADDRESS, DEFAULT_PORT, Fit, Launcher, LaunchRequest, Place, Task
from paceline.launch.pool import ProcessPool
from paceline.launch.process_host import LocalHost
from paceline.launch.rendezvous import collect, leave, publish
from paceline.launch.shared_token import secret_from


class ByHand(Launcher):
    """Launcher for several hosts, if the user starts the same command on each of them.

    Host 0 listens at --master-addr and --master-port, and the other hosts connect to it. Host 0 writes all results.
    """

    name: ClassVar[str] = "by-hand"
    starts_all: ClassVar[bool] = False
    conflicts: ClassVar = {
        "torchrun": "--nnodes is for hosts started by hand and conflicts with torchrun; use one of the two"
    }

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return Fit("--nnodes") if request.num_nodes > 1 or request.node_rank else None

    def check(self) -> None:
        request = self.request
        if not 0 <= request.node_rank < request.num_nodes:
            raise UsageError(
                f"--node-rank {request.node_rank} conflicts with --nnodes {request.num_nodes}; "
                f"it must be from 0 to {request.num_nodes - 1}, a different one on every host"
            )
        if request.num_nodes < 2:
            raise UsageError(
                "--launcher by-hand needs --nnodes (number of hosts) and --node-rank (this host's number, from 0)"
            )
        if not 0 <= request.master_port < 65536:
            raise UsageError(f"--master-port must be from 1 to 65535, not {request.master_port}")
        secret_from(request.token_file, self._master[0])

    def open(self, num_processes: int) -> ByHandPool:
        request = self.request
        if num_processes % request.num_nodes:
            raise UsageError(
                f"{num_processes} workers cannot be split evenly over {request.num_nodes} nodes "
                "(servers included); change --workers or --nnodes"
            )
        return ByHandPool(
            num_processes // request.num_nodes,
            num_nodes=request.num_nodes,
            node_rank=request.node_rank,
            master=self._master,
            secret=secret_from(request.token_file, self._master[0]),
        )

    @property
    def _master(self) -> tuple[str, int]:
        return self.request.master_addr or DEFAULT_ADDRESS, self.request.master_port or DEFAULT_PORT

    @property
    def is_main(self) -> bool:
        return self.request.node_rank == 0

    def describe(self) -> Place:
        return Place(self.name, self.request.num_nodes)


class ByHandPool(ProcessPool):
    """The worker processes of this host. Hosts compare tasks and exchange results through a store on host 0."""

    can_go_on = False  # other hosts are not notified of a failed task

    def __init__(
        self, num_processes: int, *, num_nodes: int, node_rank: int, master: tuple[str, int], secret: bytes
    ) -> None:
        host = LocalHost(num_processes, node=str(node_rank), address="")
        super().__init__(num_processes, host, first_rank=num_processes * node_rank)
        self._num_nodes, self._node_rank, self._master, self._secret = num_nodes, node_rank, master, secret
        self.is_main = node_rank == 0

    def _open_store(self, timeout_s: float) -> tuple[Any, int]:
        host, port = self._master
        try:
            connect = open_store if self.is_main else AuthenticatedStore
            return connect(host, port, self._secret, timeout_s=timeout_s), port
        except WrongSecret:
            raise RunError(
                f"node {self._node_rank} cannot join at {host}:{port}: node 0 has another secret; give all nodes "
                "the same --token-file, with the same content"
            ) from None
        except ChannelError as error:
            raise RunError(f"node {self._node_rank} cannot join at {host}:{port}: {error}") from None
        except (RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(
                f"node {self._node_rank} cannot reach the rendezvous at {host}:{port}: {reason}; start node 0 too, and "
                "give all nodes its --master-addr and --master-port"
            ) from None

    def _check_same_task(self, task: Task) -> None:
        """Raise UsageError if hosts were started with different tasks, since their workers would deadlock.

        Raises RunError if another host does not connect within the task's timeout.
        """
        request = (task.function.__name__, task.num_workers, task.num_servers, task.shared_arguments)
        digest = hashlib.sha256(repr(request).encode()).hexdigest()
        key = f"request{self._job}"
        publish(self._store, f"{key}/{self._node_rank}", digest)
        for other in range(self._num_nodes):
            try:
                other_digest = collect(self._store, f"{key}/{other}")
            except RuntimeError:
                raise RunError(
                    f"node {other} did not connect within {task.timeout_s:g} s{self._refused()}; start the same "
                    f"command on that host with --node-rank {other}"
                ) from None
            if other_digest != digest:
                leave(self._store, key, is_host=self.is_main, num_others=self._num_nodes - 1)
                raise UsageError(
                    f"node {self._node_rank} and node {other} were started with different requests; give them the same "
                    "command, except for --node-rank"
                )

    def _refused(self) -> str:
        """Return what to add to a message if somebody with another secret tried to join."""
        server = self._store.server
        if server is None or not server.refused:
            return ""
        places = ", ".join(sorted(set(server.refused)))
        return f" (refused: another --token-file or none, from {places})"

    def _gather_results(self, task: Task, results: dict[int, Any]) -> list[Any]:
        key = f"results{self._job}"
        if not self.is_main:
            publish(self._store, f"{key}/{self._node_rank}", results)
            # Wait until node 0, which hosts the store, has read the results of all nodes.
            self._store.get(f"{key}/read")
            leave(self._store, key, is_host=False, num_others=self._num_nodes - 1)
            return []
        for other in range(1, self._num_nodes):
            other_results = collect(self._store, f"{key}/{other}")
            first = other * self._num_processes
            ranks = range(first, min(first + self._num_processes, task.num_workers))
            if not isinstance(other_results, dict) or not set(ranks) <= set(other_results):
                raise RunError(f"node {other} sent no result for some of its workers; start all nodes again")
            results.update({rank: other_results[rank] for rank in ranks})
        self._store.set(f"{key}/read", "1")
        leave(self._store, key, is_host=True, num_others=self._num_nodes - 1)
        return super()._gather_results(task, results)
