"""Launcher for --cluster: starts workers on nodes that this host emulates, to measure training without a real cluster.

An emulated node is a network namespace of this host with its own address, limited bandwidth and a share of the CPUs.
"""

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

STORE_PORT = 29400  # port of the rendezvous store on node 0; always free, since the node has its own network


class Emulated(Launcher):
    """Launcher for workers on emulated nodes. The nodes are created and removed together with the pool of workers."""

    name: ClassVar[str] = "emulated"
    conflicts: ClassVar = {
        "torchrun": "--cluster starts workers on emulated nodes itself and conflicts with torchrun; use one of the two",
        "ssh": "--cluster emulates nodes on this host, --hosts uses real hosts; use one of the two",
        "by-hand": "--cluster emulates nodes on this host, --nnodes uses several hosts; use one of the two",
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
    """Starts process r on emulated node r. If there are fewer nodes than processes, consecutive processes share a node.

    The launching process is outside the nodes' network, so worker 0 hosts the rendezvous store. Workers are still
    children of the launching process, and a socket pair connects each worker to that process.
    """

    def __init__(self, config: ClusterConfig, num_processes: int) -> None:
        self._config = config
        self._node_of = spread(num_processes, config.nodes)
        self._cluster: Cluster | None = None
        self._open = ExitStack()
        self.rendezvous = ("", STORE_PORT)

    def open(self) -> None:
        from paceline.cluster import open_cluster

        self._cluster = self._open.enter_context(open_cluster(self._config))
        self.rendezvous = (self._cluster.nodes[0].address, STORE_PORT)

    def start(self, environment: dict[str, str]) -> Iterator[WorkerProcess]:
        assert self._cluster is not None, "the cluster is not open"
        # GLOO_SOCKET_IFNAME names a network interface of this host, which nodes do not have.
        own = {key: value for key, value in os.environ.items() if key != "GLOO_SOCKET_IFNAME"}
        # Nodes have no DNS, and torch would print a warning for every connection.
        own.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        for node in self._node_of:
            yield start_process({**own, **environment}, partial(self._cluster.command, node))

    def slot(self, index: int) -> WorkerSlot:
        assert self._cluster is not None, "the cluster is not open"
        node = self._node_of[index]
        return WorkerSlot(str(node), index - self._node_of.index(node), self._cluster.nodes[node].address)

    def location(self, index: int) -> str:
        return f"on emulated node {self._node_of[index]}"

    def hint(self, index: int, code: int) -> str:
        where = f" on emulated node {self._node_of[index]}"
        is_memory = code == -signal.SIGKILL and self._config.memory
        return f"{where}; it may have exceeded the node's memory of {self._config.memory}" if is_memory else where

    def close(self) -> None:
        self._cluster = None
        self._open.close()
