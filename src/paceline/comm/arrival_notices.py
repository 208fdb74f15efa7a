"""Notices that tell `recv_any` of comm `hierarchical` which peer on another node has sent a message.

`recv_any` waits for a message in shared memory or on the network, whichever arrives first. Gloo can block on a receive
from any source, but can neither poll for a message nor cancel the receive. So each sender sends a short notice before
every message to another node. A thread of the receiver collects the notices.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

from paceline.comm.base import CommError
from paceline.comm.torch import TorchComm
from paceline.limits import Limits

CLOSED = -1  # a notice with this value instead of a tag is the peer's last notice
MAX_PENDING = 64  # with more notices in transit, `announce` waits for the oldest
FOREVER = timedelta(days=365)


class ArrivalListener:
    """Receives, in a thread, the notices that peers on other nodes send before each message.

    The thread ends when all these peers have closed their comm.
    """

    def __init__(self, comm: TorchComm, peers: Sequence[int], wake: Callable[[], None]) -> None:
        self._comm, self._wake = comm, wake
        self._peers = list(peers)
        self._gloo: Any = comm._gloo
        self._arrived: list[tuple[int, int]] = []  # (peer, tag) of announced messages without a receive
        self._claimed: Counter[tuple[int, int]] = Counter()  # receives that await a notice
        self._lock = threading.Lock()
        self._error = ""
        self._sent: deque[Any] = deque()  # pending sends of notices, which keep the tensors alive
        self._limit = timedelta(seconds=comm._timeout_s)
        # Limit of the wait for the peers' last notices; then the thread continues until the process ends.
        self._goodbye_s = Limits(comm._timeout_s).goodbye_s
        self._thread = threading.Thread(target=self._listen, daemon=True, name="paceline-listener")
        self._thread.start()

    def announce(self, peer: int, tag: int) -> None:
        """Send `peer` a notice that a message with this tag will follow."""
        notice = torch.tensor([tag])
        self._sent.append(self._gloo.send([notice], peer, 0))
        if len(self._sent) > MAX_PENDING:
            self._sent.popleft().wait(self._limit)  # usually complete already

    def claim(self, peer: int, tag: int) -> None:
        """Reserve the peer's next message with this tag for a receive that names the peer, not for `recv_any`."""
        with self._lock:
            if (peer, tag) in self._arrived:
                self._arrived.remove((peer, tag))
            else:
                self._claimed[peer, tag] += 1

    def has(self, tag: int) -> bool:
        """Return whether a peer has announced a message with this tag that no receive has claimed.

        Raise CommError if there is no such message and the thread that receives notices has failed.
        """
        with self._lock:
            if any(other == tag for _, other in self._arrived):
                return True
        if self._error:
            raise CommError(f"worker {self._comm._names[self._comm.rank]} lost its peers on other nodes: {self._error}")
        return False

    def take(self, tag: int) -> int:
        """Claim the first announced message with this tag, and return its sender's rank.

        Call this only if `has(tag)` returns True.
        """
        with self._lock:
            index = next(index for index, (_, other) in enumerate(self._arrived) if other == tag)
            return self._arrived.pop(index)[0]

    def close(self) -> None:
        for peer in self._peers:
            with suppress(RuntimeError):  # the peer has ended
                self.announce(peer, CLOSED)
        self._thread.join(self._goodbye_s)
        for notice in self._sent:
            with suppress(RuntimeError):
                notice.wait(timedelta(seconds=self._goodbye_s))
        self._comm.close()

    def _add(self, peer: int, tag: int) -> None:
        """Record that a peer has announced a message, unless an earlier receive from this peer claimed the message."""
        with self._lock:
            if self._claimed[peer, tag] > 1:
                self._claimed[peer, tag] -= 1
            elif (peer, tag) in self._claimed:
                del self._claimed[peer, tag]
            else:
                self._arrived.append((peer, tag))

    def _listen(self) -> None:
        open_peers = set(self._peers)
        notice = torch.zeros(1, dtype=torch.int64)
        try:
            while open_peers:
                work = self._gloo.recv_anysource([notice], 0)
                work.wait(FOREVER)
                peer, tag = int(work._source_rank()), int(notice)
                if tag == CLOSED:
                    open_peers.discard(peer)
                    continue
                self._add(peer, tag)
                self._wake()
        except RuntimeError as error:
            self._error = str(error).splitlines()[0]
            self._wake()
