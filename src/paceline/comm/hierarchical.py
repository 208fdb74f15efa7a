"""Comm `hierarchical`: shared memory within a node, and a ring between the leaders of nodes.

A node is a host. Its leader is the worker with the lowest rank. A collective has up to three stages: within every
node, between leaders, and within every node again, so that only one worker per node uses the network. A message uses
shared memory if both workers are on the same node, and torch's gloo otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm.arrival_notices import ArrivalListener
from paceline.comm.base import Comm, CommConfig
from paceline.comm.collectives import COLLECTIVE_TAG, CompletedWork, Work, wait_all
from paceline.comm.process_group import CommGroup
from paceline.comm.shm import ShmComm
from paceline.comm.torch import CountedGroup, TorchComm, prefix_store


class HierarchicalComm(Comm):
    """Connects workers through shared memory within a node, and through gloo between nodes."""

    name: ClassVar[str] = "hierarchical"

    @classmethod
    def unavailable(cls) -> str:
        return ShmComm.unavailable()

    @classmethod
    def connect(cls, config: CommConfig) -> HierarchicalComm:
        return cls(
            config.rank,
            config.world_size,
            config.store,
            node=config.node,
            timeout_s=config.timeout_s,
            address=config.address,
        )

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Any,
        *,
        node: str = "0",
        timeout_s: float = 60.0,
        address: str = "",
        names: Sequence[int] = (),
    ) -> None:
        """Connect this worker to its peers.

        `names` has the ranks to show in error messages, if this comm connects only some workers of a job.
        """
        super().__init__(rank, world_size)
        self._names = names or range(world_size)
        self._store = store
        self._groups: list[CommGroup] = []
        self._reconnect = partial(
            HierarchicalComm, rank, world_size, node=node, timeout_s=timeout_s, address=address, names=names
        )
        store.set(f"hierarchical/node/{rank}", node)
        ranks_by_name: dict[str, list[int]] = {}
        for peer in range(world_size):
            ranks_by_name.setdefault(store.get(f"hierarchical/node/{peer}").decode(), []).append(peer)
        self._nodes = list(ranks_by_name.values())  # ranks of every node; nodes in order of their leaders' ranks
        self._own_node = next(index for index, ranks in enumerate(self._nodes) if rank in ranks)
        self._node_of = {peer: index for index, ranks in enumerate(self._nodes) for peer in ranks}
        ranks_here = self._nodes[self._own_node]
        self._local_ranks = {peer: index for ranks in self._nodes for index, peer in enumerate(ranks)}
        self._local = ShmComm(
            self._local_ranks[rank],
            len(ranks_here),
            prefix_store(f"node{self._own_node}", store),
            timeout_s=timeout_s,
            names=[self._names[peer] for peer in ranks_here],
        )
        self._leaders: TorchComm | None = None
        self._world: TorchComm | None = None
        self._listener: ArrivalListener | None = None
        if len(self._nodes) == 1:
            return
        gloo = partial(TorchComm, timeout_s=timeout_s, address=address)
        self._world = gloo(rank, world_size, prefix_store("world", store), names=self._names)
        if rank == ranks_here[0]:
            leaders = [self._names[ranks[0]] for ranks in self._nodes]
            self._leaders = gloo(self._own_node, len(self._nodes), prefix_store("leaders", store), names=leaders)
        remote = [peer for peer in range(world_size) if peer not in ranks_here]
        control = gloo(rank, world_size, prefix_store("control", store), names=self._names)
        self._listener = ArrivalListener(control, remote, wake=lambda: self._local._waiter.wake(self._local.rank))

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Return how many bytes a worker writes and reads per byte of the tensor, as if all workers were on one node.

        The bytes on the network depend on the placement of the workers, which is unknown before they are connected.
        """
        return ShmComm.wire_factors(op, peer, rank, world_size)

    @classmethod
    def sent_to(cls, op: str, peer: int | None, rank: int, world_size: int) -> dict[int, float]:
        return ShmComm.sent_to(op, peer, rank, world_size)

    def _barrier(self) -> None:
        self._local.barrier()
        if self._leaders is not None:
            self._leaders.barrier()
        if len(self._nodes) > 1:
            self._local.barrier()

    def progress(self) -> None:
        self._local.progress()

    def process_group(self) -> Any:
        # A separate comm, because collectives of the group may be in progress while this comm is used.
        prefixed = prefix_store(f"group{len(self._groups)}", self._store)
        self._groups.append(CommGroup(self._reconnect(prefixed)))
        return CountedGroup(self, self._groups[-1])

    def close(self) -> None:
        for group in self._groups:
            group.shutdown()
        self._groups.clear()
        if self._listener is not None:
            self._listener.close()
        for comm in (self._local, self._leaders, self._world):
            if comm is not None:
                comm.close()

    def _network(self) -> TorchComm:
        assert self._world is not None, "a single node has no connection to others"
        return self._world

    # Messages.

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._node_of[peer] == self._own_node:
            return self._local._isend(tensor, self._local_ranks[peer], tag)
        assert self._listener is not None
        self._listener.announce(peer, tag)
        return self._network()._isend(tensor, peer, tag)

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        if self._node_of[peer] == self._own_node:
            return self._local._irecv(tensor, self._local_ranks[peer], tag)
        assert self._listener is not None
        self._listener.claim(peer, tag)
        return self._network()._irecv(tensor, peer, tag)

    def _recv_any(self, tensor: Tensor, tag: int) -> int:
        listener = self._listener
        if listener is None:
            return self._nodes[self._own_node][self._local._recv_any(tensor, tag)]
        local_rank = self._local._mailbox.receive_any(tensor, tag, lambda: listener.has(tag))
        if local_rank >= 0:
            return self._nodes[self._own_node][local_rank]
        peer = listener.take(tag)
        self._network()._irecv(tensor, peer, tag).wait()
        return peer

    # Collectives.

    def _all_reduce(self, tensor: Tensor) -> None:
        self._local._all_reduce(tensor)
        if self._leaders is not None:
            self._leaders._all_reduce(tensor)
        self._spread(tensor)

    def _ireduce_scatter(self, output: Tensor, tensor: Tensor) -> Work:
        """Run a reduce-scatter in three stages, and return completed work.

        First, the workers of each node sum `tensor`. Then each leader collects the slices for its node's workers from
        all leaders, and adds them up. Finally, each leader scatters the sums to its node's workers.
        """
        if len(self._nodes) == 1:
            return self._local._ireduce_scatter(output, tensor)
        if output.numel() == 0:
            return CompletedWork()
        rows = tensor.reshape(self.world_size, -1).clone()
        self._local._all_reduce(rows)
        ours: list[Tensor] = []
        if self._leaders is not None:
            parts = [rows[ranks] for ranks in self._nodes]
            others = [index for index in range(len(self._nodes)) if index != self._own_node]
            received = {index: torch.empty_like(parts[self._own_node]) for index in others}
            works = [self._leaders._irecv(received[index], index, COLLECTIVE_TAG) for index in others]
            works += [self._leaders._isend(parts[index], index, COLLECTIVE_TAG) for index in others]
            wait_all(works)
            received[self._own_node] = parts[self._own_node]
            total = received[0].clone()
            for index in range(1, len(self._nodes)):
                self.add(total, received[index])
            ours = list(total)
        mine = torch.empty_like(rows[0])
        self._local._scatter(mine, ours, 0)
        output.copy_(mine.view(output.shape))
        return CompletedWork()

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        source = self._node_of[root]
        if source == self._own_node:
            self._local._broadcast(tensor, self._local_ranks[root])
        if self._leaders is not None:
            self._leaders._broadcast(tensor, source)
        if source != self._own_node:
            self._spread(tensor)

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        """Gather tensors on the root. Outside the root's node, a leader sends its workers' tensors in one message."""
        if self._node_of[root] != self._own_node:
            pieces = self._local._gather(tensor, 0)
            if pieces:
                self._network()._isend(torch.stack(pieces), root, COLLECTIVE_TAG).wait()
            return []
        pieces = self._local._gather(tensor, self._local_ranks[root])
        if self.rank != root:
            return []
        stacks = {index: self._stack(tensor, index) for index in range(len(self._nodes)) if index != self._own_node}
        for index, stack in stacks.items():
            self._network()._irecv(stack, self._nodes[index][0], COLLECTIVE_TAG).wait()
        return self._by_rank({self._own_node: pieces, **{index: list(stack) for index, stack in stacks.items()}})

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        """Scatter `pieces` from the root. Outside the root's node, a leader gets its workers' pieces in one message."""
        if self._node_of[root] == self._own_node:
            works = []
            if self.rank == root:
                for index, ranks in enumerate(self._nodes):
                    if index != self._own_node:
                        stack = torch.stack([pieces[peer] for peer in ranks])
                        works.append(self._network()._isend(stack, ranks[0], COLLECTIVE_TAG))
            mine = [pieces[peer] for peer in self._nodes[self._own_node]] if self.rank == root else []
            self._local._scatter(tensor, mine, self._local_ranks[root])
            wait_all(works)
            return
        received: list[Tensor] = []
        if self._leaders is not None:
            stack = self._stack(tensor, self._own_node)
            self._network()._irecv(stack, root, COLLECTIVE_TAG).wait()
            received = list(stack)
        self._local._scatter(tensor, received, 0)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        """All-gather in stages: within nodes, between leaders, and from each leader to its workers."""
        pieces = self._local._all_gather(tensor)
        if len(self._nodes) == 1:
            return pieces
        whole = torch.empty(self.world_size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        stacks = list(whole.split([len(ranks) for ranks in self._nodes]))
        if self._leaders is not None:
            torch.stack(pieces, out=stacks[self._own_node])
            for index, stack in enumerate(stacks):
                self._leaders._broadcast(stack, index)
        self._spread(whole)
        return self._by_rank({index: list(stack) for index, stack in enumerate(stacks)})

    def _spread(self, tensor: Tensor) -> None:
        """Broadcast the leader's tensor to the workers of its node; do nothing if there is only one node."""
        if len(self._nodes) > 1:
            self._local._broadcast(tensor, 0)

    def _medium(self, op: str, peer: int | None) -> str:
        """Return "memory" for an operation within one node, and "network" if workers of several nodes take part."""
        is_message = op in ("send", "recv")
        is_local = len(self._nodes) == 1 or (is_message and peer is not None and self._node_of[peer] == self._own_node)
        return "memory" if is_local else "network"

    def _stack(self, tensor: Tensor, node: int) -> Tensor:
        return torch.empty(len(self._nodes[node]), *tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def _by_rank(self, by_node: dict[int, list[Tensor]]) -> list[Tensor]:
        return [by_node[self._node_of[rank]][self._local_ranks[rank]] for rank in range(self.world_size)]
