"""Workers as processes of this host, on emulated nodes where asked for; hosts, each started by hand, make one world."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.comm.torch import make_store
from paceline.errors import RunError, UsageError
from paceline.launch.base import Task
from paceline.launch.emulated import EmulatedNodes
from paceline.launch.ground import Ground, Here
from paceline.launch.pool import PoolLauncher
from paceline.launch.rendezvous import collect, leave, publish
from paceline.recipe import ClusterConfig


@dataclass(frozen=True)
class Nodes:
    """Which of several hosts this one is."""

    num_nodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.num_nodes:
            raise UsageError(f"node rank {self.node_rank} is not one of 0 to {self.num_nodes - 1} (--nnodes)")
        if self.num_nodes > 1 and not 0 < self.master_port < 65536:
            raise UsageError(f"several nodes need a --master-port from 1 to 65535, not {self.master_port}")


class LocalLauncher(PoolLauncher):
    """A pool of processes of this host: plain ones, or on the nodes of an emulated cluster."""

    name: ClassVar[str] = "local"

    def __init__(self, num_processes: int, nodes: Nodes | None = None, cluster: ClusterConfig | None = None) -> None:
        """Room for the workers and servers of the largest task. A cluster is up from the block's begin to its end."""
        self.nodes = nodes or Nodes()
        if num_processes % self.nodes.num_nodes:
            raise UsageError(
                f"{num_processes} workers cannot be split evenly over {self.nodes.num_nodes} nodes (servers included, "
                "where a strategy has some)"
            )
        per_node = num_processes // self.nodes.num_nodes
        is_alone = self.nodes.num_nodes == 1
        ground: Ground = Here(per_node, node=str(self.nodes.node_rank), address="127.0.0.1" if is_alone else "")
        if cluster is not None and cluster.nodes:
            if not is_alone:
                raise UsageError("--cluster emulates nodes on this host alone; it cannot be used with --nnodes")
            ground = EmulatedNodes(cluster, num_processes)
        super().__init__(per_node, ground, first_rank=per_node * self.nodes.node_rank)
        self.is_main = self.nodes.node_rank == 0
        self.can_go_on = is_alone  # other hosts would not know that a task has ended
        if not is_alone:
            self._master = (self.nodes.master_addr, self.nodes.master_port)

    def _meet(self, timeout_s: float) -> tuple[Any, int]:
        nodes = self.nodes
        if nodes.num_nodes == 1:
            return super()._meet(timeout_s)
        try:
            store = make_store(
                nodes.master_addr, nodes.master_port, is_master=nodes.node_rank == 0, timeout_s=timeout_s
            )
        except (RuntimeError, OSError) as error:
            where = f"{nodes.master_addr}:{nodes.master_port}"
            reason = str(error).partition("\n")[0]
            raise RunError(f"node {nodes.node_rank} cannot meet the others at {where}: {reason}") from None
        return store, nodes.master_port

    def _agree_on(self, task: Task) -> None:
        """Nodes that were started with different requests would wait for each other for ever."""
        nodes = self.nodes
        if nodes.num_nodes == 1:
            return
        mark = hashlib.sha256(
            repr((task.function.__name__, task.num_workers, task.num_servers, task.shared_arguments)).encode()
        )
        publish(self._store, f"request{self._job}/{nodes.node_rank}", mark.hexdigest())
        for other in range(nodes.num_nodes):
            try:
                theirs = collect(self._store, f"request{self._job}/{other}")
            except RuntimeError:
                raise RunError(f"node {other} did not appear within {task.timeout_s:g} s") from None
            if theirs != mark.hexdigest():
                leave(self._store, f"request{self._job}", is_host=self.is_main, num_others=nodes.num_nodes - 1)
                raise UsageError(f"node {nodes.node_rank} and node {other} were started with different requests")

    def _bring_together(self, task: Task, results: dict[int, Any]) -> list[Any]:
        nodes = self.nodes
        if nodes.num_nodes > 1:
            if not self.is_main:
                publish(self._store, f"results{self._job}/{nodes.node_rank}", results)
                # The store lives in node 0: stay until it has what it needs.
                self._store.get(f"results{self._job}/taken")
                leave(self._store, f"results{self._job}", is_host=False, num_others=nodes.num_nodes - 1)
                return []
            for other in range(1, nodes.num_nodes):
                theirs = collect(self._store, f"results{self._job}/{other}")
                results.update({int(rank): result for rank, result in theirs.items()})
            self._store.set(f"results{self._job}/taken", "1")
            leave(self._store, f"results{self._job}", is_host=True, num_others=nodes.num_nodes - 1)
        return super()._bring_together(task, results)
