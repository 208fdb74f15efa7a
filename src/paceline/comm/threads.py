"""Comm `threads`: workers are threads of one process; messages are copies in queues. For tests and experiments."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.comm.base import Comm, CommError
from paceline.comm.collectives import CompletedWork, Work

_Queue = queue.SimpleQueue[Tensor]


class ThreadQueues:
    """The message queues of a group of workers: one per sender, receiver and tag."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.queues: dict[tuple[int, int, int], _Queue] = defaultdict(queue.SimpleQueue)
        self.arrival = threading.Condition()


class ThreadsComm(Comm):
    """Connects threads of one process; sending never blocks, because the message is a copy."""

    name: ClassVar[str] = "threads"
    between_processes: ClassVar[bool] = False
    between_nodes: ClassVar[bool] = False
    medium: ClassVar[str] = "memory"

    def __init__(self, rank: int, world_size: int, queues: ThreadQueues) -> None:
        super().__init__(rank, world_size)
        self._queues = queues
        self._posted: dict[tuple[int, int], deque[_Receive]] = defaultdict(deque)

    @staticmethod
    def world(world_size: int, timeout_s: float = 20.0) -> list[ThreadsComm]:
        """Return `world_size` comms that are connected to each other, one per worker."""
        queues = ThreadQueues(timeout_s)
        return [ThreadsComm(rank, world_size, queues) for rank in range(world_size)]

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        with self._queues.arrival:
            self._queues.queues[self.rank, peer, tag].put(tensor.detach().clone())
            self._queues.arrival.notify_all()
        return CompletedWork()

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        receive = _Receive(self, tensor, peer, tag)
        self._posted[peer, tag].append(receive)
        return receive

    def _complete(self, receive: _Receive) -> None:
        """Wait until `receive` has its message. Earlier receives with the same peer and tag get theirs first."""
        posted = self._posted[receive.peer, receive.tag]
        while receive in posted:
            self._take([receive.peer], posted[0].tensor, receive.tag)
            posted.popleft()

    def _recv_any(self, tensor: Tensor, tag: int) -> int:
        return self._take(self._others(), tensor, tag)

    def _take(self, peers: list[int], tensor: Tensor, tag: int) -> int:
        def arrived() -> list[int]:
            return [peer for peer in peers if not self._queues.queues[peer, self.rank, tag].empty()]

        with self._queues.arrival:
            senders = self._queues.arrival.wait_for(arrived, self._queues.timeout_s)
            if not senders:
                raise CommError(f"worker {self.rank} received nothing from {peers} in {self._queues.timeout_s:g} s")
            tensor.copy_(self._queues.queues[senders[0], self.rank, tag].get())
            return senders[0]


@dataclass(eq=False)
class _Receive:
    comm: ThreadsComm
    tensor: Tensor
    peer: int
    tag: int

    def wait(self) -> None:
        self.comm._complete(self)
