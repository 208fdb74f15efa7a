"""Progress counters of the workers of one host, in shared memory."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.shm_segment import LINE_BYTES, Segment
from paceline.comm.shm_wait import WORDS_PER_LINE, ShmWaiter
from paceline.errors import RunError

OPERATIONS = ("barrier", "all_reduce", "reduce_scatter", "broadcast", "gather", "all_gather", "scatter")


class ShmGroup(NamedTuple):
    """The collective that a worker takes part in; compared between workers to detect mismatched calls."""

    op: str
    nbytes: int = 0
    root: int = 0

    def packed(self) -> int:
        return (OPERATIONS.index(self.op) << 56) + (self.root << 48) + self.nbytes

    @staticmethod
    def unpacked(word: int) -> ShmGroup:
        return ShmGroup(OPERATIONS[word >> 56], word & ((1 << 48) - 1), (word >> 48) & 0xFF)

    def __str__(self) -> str:
        return self.op if self.op == "barrier" else f"{self.op} of {self.nbytes} bytes"


class Counters:
    """Counters of each worker's progress that only grow; each worker writes only its own cache line."""

    READY, SUMMED, FREE = 0, 1, 2
    STAMPS, NUM_STAMPS = 4, 4  # collectives of the last pieces; no worker is four pieces ahead of another

    def __init__(self, segment: Segment, offset: int, waiter: ShmWaiter) -> None:
        self._words = segment.words(offset, WORDS_PER_LINE * waiter.world_size)
        self._waiter = waiter
        self._mine = WORDS_PER_LINE * waiter.rank
        self._lines = range(0, WORDS_PER_LINE * waiter.world_size, WORDS_PER_LINE)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return LINE_BYTES * world_size

    def publish(self, kind: int, number: int) -> None:
        self._words[self._mine + kind] = number
        self._waiter.wake_all()

    def first_behind(self, kind: int, number: int) -> int:
        """Return the first worker whose counter is below `number`; -1 if there is none."""
        words = self._words
        for line in self._lines:
            if words[line + kind] < number:
                return line // WORDS_PER_LINE
        return -1

    def wait_all(self, kind: int, number: int) -> None:
        self._waiter.wait(lambda: self.first_behind(kind, number))

    def wait_for(self, peer: int, kind: int, number: int) -> None:
        words, word = self._words, peer * WORDS_PER_LINE + kind
        self._waiter.wait(lambda: peer if words[word] < number else -1)

    # Pieces of collectives: each worker publishes its collective and compares it with those of its peers.

    def mark_ready(self, number: int, collective: ShmGroup) -> None:
        """Publish that this worker has done its part of a piece."""
        self._words[self._mine + self.STAMPS + number % self.NUM_STAMPS] = collective.packed()
        self.publish(self.READY, number)

    def wait_ready_all(self, number: int, collective: ShmGroup) -> None:
        """Wait until all workers have done their part of a piece."""
        self.wait_all(self.READY, number)
        for peer in range(self._waiter.world_size):
            self._compare(peer, number, collective)

    def wait_ready(self, peer: int, number: int, collective: ShmGroup) -> None:
        """Wait until one peer has done its part of a piece."""
        self.wait_for(peer, self.READY, number)
        self._compare(peer, number, collective)

    def _compare(self, peer: int, number: int, collective: ShmGroup) -> None:
        theirs = self._words[peer * WORDS_PER_LINE + self.STAMPS + number % self.NUM_STAMPS]
        if theirs != collective.packed():
            mine, other = self._waiter.names[self._waiter.rank], self._waiter.names[peer]
            raise RunError(
                f"workers are out of step: worker {mine} is in {collective}, worker {other} in "
                f"{ShmGroup.unpacked(theirs)}; every worker must call the same collectives in the same order"
            )
