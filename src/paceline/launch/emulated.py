"""Workers on emulated nodes of this machine, each with its own network, link and share of the processor."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from paceline.errors import UsageError
from paceline.launch.base import Fit, Launcher, LaunchRequest, Place
from paceline.launch.pool import ProcessPool
from paceline.launch.process_host import ProcessHost, WorkerProcess, WorkerSlot, spread, start_process
from paceline.recipe import ClusterConfig

if TYPE_CHECKING:
    from paceline.cluster import Cluster

STORE_PORT = 29400  # of node 0, whose network nobody else is in


class Emulated(Launcher):
    """Processes on emulated nodes, which exist as long as the pool."""

    name: ClassVar[str] = "emulated"
    conflicts: ClassVar = {
        "torchrun": "--cluster starts workers on emulated nodes itself; leave torchrun out, or --cluster",
        "ssh": "--cluster emulates nodes on this host, --hosts uses real ones; give one of the two",
        "by-hand": "--cluster emulates nodes on this host alone; it cannot be used with --nnodes",
    }

    @classmethod
    def detect(cls, request: LaunchRequest) -> Fit | None:
        return Fit("--cluster") if request.cluster.nodes else None

    def check(self) -> None:
        if not self.request.cluster.nodes:
            raise UsageError(
                "--launcher emulated needs nodes to emulate; an example: --cluster nodes=4,bandwidth=1gbit"
            )

    def open(self, num_processes: int) -> ProcessPool:
        return ProcessPool(num_processes, EmulatedNodes(self.request.cluster, num_processes))

    def describe(self) -> Place:
        return Place(self.name, words=f"on emulated nodes ({self.request.cluster})")


class EmulatedNodes(ProcessHost):
    """Process r on node r, or even blocks where there are more processes than nodes.

    This process is not in the nodes' network: worker 0 keeps the store, and pipes are socket pairs.
    """

    def __init__(self, config: ClusterConfig, num_processes: int) -> None:
        self._config = config
        self._node_of = spread(num_processes, config.nodes)
        self._cluster: Cluster | None = None
        self._open = ExitStack()
        self.meeting = ("", STORE_PORT)

    def open(self) -> None:
        from paceline.cluster import open_cluster

        self._cluster = self._open.enter_context(open_cluster(self._config))
        self.meeting = (self._cluster.nodes[0].address, STORE_PORT)

    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        assert self._cluster is not None, "the cluster is not up"
        # It names an interface of this host, which nodes do not have.
        own = {key: value for key, value in os.environ.items() if key != "GLOO_SOCKET_IFNAME"}
        # Nodes have no name service; without this torch warns of it for each connection.
        own.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        for node in self._node_of:
            yield start_process({**own, **environment}, partial(self._cluster.command, node))

    def seat(self, index: int) -> WorkerSlot:
        assert self._cluster is not None, "the cluster is not up"
        node = self._node_of[index]
        return WorkerSlot(str(node), index - self._node_of.index(node), self._cluster.nodes[node].address)

    def who(self, index: int) -> str:
        return f"on emulated node {self._node_of[index]}"

    def hint(self, index: int, code: int) -> str:
        where = f" on emulated node {self._node_of[index]}"
        is_memory = code == -signal.SIGKILL and self._config.memory
        return f"{where}, as one is that needs more than its node's {self._config.memory}" if is_memory else where

    def close(self) -> None:
        self._cluster = None
        self._open.close()
