"""Point-to-point messages with tags for comm `shm`: sends and receives through shared memory.

For each sender and receiver there is a channel: a ring buffer for data, and a list of entries that describe the data.
The sender divides a message into pieces of at most PIECE_BYTES, copies each piece into the ring buffer and adds an
entry for it. The receiver copies the piece out and frees the entry. Only the sender writes the number of added entries,
and only the receiver writes the number of freed entries.

If the buffer has room for the whole message, `send` copies the whole message before it returns. Otherwise the rest of
the message is copied when the sender calls `progress` or waits for an operation of this comm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from paceline.comm.shm_memory import LINE_BYTES, Segment, round_up_to_lines
from paceline.comm.shm_sync import WORDS_PER_LINE, ShmWaiter

PIECE_BYTES = 1 << 20  # largest piece; the receiver reads one while the sender writes the next
ENTRIES = 128
ROOM_BYTES = 1 << 30  # limit of the buffers of all outgoing channels of a worker together


T = TypeVar("T")


class Mailbox:
    """One worker's channels to and from its peers."""

    def __init__(self, segment: Segment, offset: int, waiter: ShmWaiter) -> None:
        self._waiter = waiter
        rank, world_size = waiter.rank, waiter.world_size
        peers = [peer for peer in range(world_size) if peer != rank]
        stride = channel_bytes(world_size)

        def channel(source: int, target: int) -> MailboxChannel:
            return MailboxChannel(segment, offset + (source * world_size + target) * stride, stride)

        self._out = {peer: _Outbox(channel(rank, peer), peer) for peer in peers}
        self._in = {peer: _Inbox(channel(peer, rank), peer) for peer in peers}
        self._turn = 0

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return channel_bytes(world_size) * world_size * world_size

    def send(self, tensor: Tensor, peer: int, tag: int) -> Sending:
        sending = Sending(self, peer, tag, _as_bytes(tensor))
        outbox = self._out[peer]
        outbox.waiting.append(sending)
        self._push(outbox)
        return sending

    def receive(self, tensor: Tensor, peer: int, tag: int) -> Receiving:
        receiving = Receiving(self, peer, tag, tensor)
        inbox = self._in[peer]
        inbox.posted.setdefault(tag, deque()).append(receiving)
        inbox.match(tag)
        return receiving

    def receive_any(self, tensor: Tensor, tag: int, has_other: Callable[[], bool] | None = None) -> int:
        """Receive a message with this tag from any peer, and return the peer's rank. Peers are served in turn.

        `has_other` tells whether a worker on another node has announced a message with this tag. As soon as `has_other`
        returns True, this method returns -1 and receives nothing. The thread that receives announcements must wake this
        worker.
        """
        inboxes = list(self._in.values())
        arrived: list[_Inbox] = []

        def first_missing() -> int:
            self.progress(push_only=True)
            if has_other is not None and has_other():
                return -1
            for step in range(len(inboxes)):
                inbox = inboxes[(self._turn + step) % len(inboxes)]
                self._pull(inbox)
                if tag in inbox.unexpected:
                    arrived.append(inbox)
                    return -1
            return inboxes[0].peer if inboxes else self._waiter.rank

        self._waiter.wait(first_missing, whom="" if has_other is None else "any worker")
        if not arrived:
            return -1
        inbox = arrived[0]
        self._turn = (inboxes.index(inbox) + 1) % len(inboxes)
        _copy_bytes(tensor, _pop(inbox.unexpected, tag), inbox.peer)
        return inbox.peer

    def progress(self, *, push_only: bool = False) -> None:
        """Copy as much of the pending messages as possible without waiting; `push_only` skips incoming messages."""
        for outbox in self._out.values():
            if outbox.waiting:
                self._push(outbox)
        if push_only:
            return
        for inbox in self._in.values():
            if inbox.is_wanted:
                self._pull(inbox)

    def complete(self, is_done: Callable[[], bool], peer: int) -> None:
        """Copy pieces of all pending messages until `is_done()` returns True.

        Raise CommError after the time limit. The error names `peer`, the sender or receiver of the awaited message.
        """

        def first_missing() -> int:
            if not is_done():
                self.progress()
            return -1 if is_done() else peer

        self._waiter.wait(first_missing)

    def _push(self, outbox: _Outbox) -> None:
        if outbox.push():
            self._waiter.wake(outbox.peer)

    def _pull(self, inbox: _Inbox) -> None:
        if inbox.pull():
            self._waiter.wake(inbox.peer)


@dataclass(eq=False)
class _Message:
    """A send or a receive in progress; `wait` returns when it is done."""

    mailbox: Mailbox
    peer: int
    tag: int
    tensor: Tensor
    is_done: bool = field(default=False, init=False)

    def wait(self) -> None:
        if not self.is_done:
            self.mailbox.complete(lambda: self.is_done, self.peer)


@dataclass(eq=False)
class Sending(_Message):
    """A send in progress. `tensor` holds the bytes that still have to be copied into the channel."""

    def __post_init__(self) -> None:
        self.total = self.tensor.numel()


class Receiving(_Message):
    """A receive in progress. It is done when the message is in `tensor`."""


def channel_bytes(world_size: int) -> int:
    """Return the size of one channel in bytes: counters, entries and buffer."""
    room = max(ROOM_BYTES // max(world_size - 1, 1), 4 * PIECE_BYTES)
    return (2 + ENTRIES) * LINE_BYTES + round_up_to_lines(min(room, ROOM_BYTES // 16))


class MailboxChannel:
    """The shared memory of one channel: its counters and entries (`words`) and its buffer (`data`)."""

    def __init__(self, segment: Segment, offset: int, nbytes: int) -> None:
        control = (2 + ENTRIES) * LINE_BYTES
        self.words = segment.words(offset, control // 8)
        self.data = segment.tensor(offset + control, nbytes - control, torch.uint8)

    # Positions in `words` of two counters: HEAD counts entries added by the sender, TAIL entries freed by the receiver.
    HEAD, TAIL = 0, WORDS_PER_LINE

    @staticmethod
    def entry(index: int) -> int:
        """Return the position in `words` of the entry with number `index`.

        An entry has four words: offset and size of a piece, tag, and size of the whole message. Sizes are in bytes.
        """
        return (2 + index % ENTRIES) * WORDS_PER_LINE


class _Outbox:
    """The sender's side of a channel."""

    def __init__(self, channel: MailboxChannel, peer: int) -> None:
        self._channel, self.peer = channel, peer
        self.waiting: deque[Sending] = deque()
        self._used: deque[int] = deque()  # offsets of pieces that the receiver has not freed
        self._head = self._tail = 0
        self._next = 0

    def push(self) -> bool:
        """Put pieces of waiting messages into the channel while there is room; return whether any piece was put."""
        before = self._head
        while self.waiting:
            sending = self.waiting[0]
            if not self._put(sending):
                break
            if sending.tensor.numel() == 0:
                sending.is_done = True
                self.waiting.popleft()
        return self._head != before

    def _put(self, sending: Sending) -> bool:
        nbytes = min(sending.tensor.numel(), PIECE_BYTES)
        offset = self._room(nbytes)
        if offset < 0:
            return False
        piece, sending.tensor = sending.tensor[:nbytes], sending.tensor[nbytes:]
        self._channel.data[offset : offset + nbytes].copy_(piece)
        words, entry = self._channel.words, MailboxChannel.entry(self._head)
        words[entry], words[entry + 1], words[entry + 2], words[entry + 3] = offset, nbytes, sending.tag, sending.total
        self._used.append(offset)
        self._head += 1
        words[MailboxChannel.HEAD] = self._head
        return True

    def _room(self, nbytes: int) -> int:
        """Reserve memory in the buffer for a piece of `nbytes` bytes; return the offset, or -1 if there is no room.

        If the buffer is empty, the offset is 0, because the start of the buffer is probably in the CPU's cache.
        """
        tail = self._channel.words[MailboxChannel.TAIL]
        for _ in range(tail - self._tail):
            self._used.popleft()
        self._tail = tail
        if not self._used:
            self._next = 0
        if len(self._used) == ENTRIES:
            return -1
        need = round_up_to_lines(max(nbytes, 1))
        first_used = self._used[0] if self._used else self._channel.data.numel()
        if not self._used or self._next > first_used:
            # Used memory ends at `_next`: free memory is after it, or before the first used piece.
            if self._next + need <= self._channel.data.numel():
                return self._reserve(self._next, need)
            if need < first_used and self._used:
                return self._reserve(0, need)
            return -1
        return self._reserve(self._next, need) if self._next + need < first_used else -1

    def _reserve(self, offset: int, need: int) -> int:
        self._next = offset + need
        return offset


class _Inbox:
    """The receiver's side of a channel."""

    def __init__(self, channel: MailboxChannel, peer: int) -> None:
        self._channel, self.peer = channel, peer
        # By tag: receives that wait for a message, and complete messages that wait for a receive. No tag is in both.
        self.posted: dict[int, deque[Receiving]] = {}
        self.unexpected: dict[int, deque[Tensor]] = {}
        self._tail = 0
        self._target: Tensor | None = None  # where the arriving message is copied to
        self._receiving: Receiving | None = None  # the receive of the arriving message, if it was posted in time
        self._filled = 0

    @property
    def is_wanted(self) -> bool:
        return bool(self.posted) or self._receiving is not None

    def pull(self) -> bool:
        """Copy every piece that has arrived out of the channel; return whether any piece had arrived."""
        words = self._channel.words
        head = words[MailboxChannel.HEAD]
        if head == self._tail:
            return False
        while self._tail < head:
            entry = MailboxChannel.entry(self._tail)
            offset, nbytes, tag, total = words[entry : entry + 4].tolist()
            self._copy_out(self._channel.data[offset : offset + nbytes], tag, total)
            self._tail += 1
            words[MailboxChannel.TAIL] = self._tail
        return True

    def _copy_out(self, piece: Tensor, tag: int, total: int) -> None:
        if self._target is None:
            if tag in self.posted and self.posted[tag][0].tensor.device.type == "cpu":
                target = _as_bytes(self.posted[tag][0].tensor)
                _check_length(target.numel(), total, self.peer)
                self._target, self._receiving = target, _pop(self.posted, tag)
            else:
                self._target = torch.empty(total, dtype=torch.uint8)
            self._filled = 0
        self._target[self._filled : self._filled + piece.numel()].copy_(piece)
        self._filled += piece.numel()
        if self._filled < total:
            return
        target, receiving, self._target, self._receiving = self._target, self._receiving, None, None
        if receiving is not None:
            receiving.is_done = True
        else:
            self.unexpected.setdefault(tag, deque()).append(target)
            self.match(tag)

    def match(self, tag: int) -> None:
        """Copy complete messages with this tag to receives, in the order in which the receives were posted."""
        while tag in self.posted and tag in self.unexpected:
            receiving = _pop(self.posted, tag)
            _copy_bytes(receiving.tensor, _pop(self.unexpected, tag), self.peer)
            receiving.is_done = True


def _pop(queues: dict[int, deque[T]], tag: int) -> T:
    """Remove and return the first element of a tag's queue. Delete empty queues, since every step may use a new tag."""
    queue = queues[tag]
    first = queue.popleft()
    if not queue:
        del queues[tag]
    return first


def _check_length(expected: int, nbytes: int, peer: int) -> None:
    if expected != nbytes:
        raise ValueError(f"worker {peer} sent a message of {nbytes} bytes, but the receive expects {expected} bytes")


def _as_bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().cpu().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def _copy_bytes(tensor: Tensor, message: Tensor, peer: int) -> None:
    _check_length(tensor.numel() * tensor.element_size(), message.numel(), peer)
    if message.numel():
        tensor.copy_(message.view(tensor.dtype).view(tensor.shape))
