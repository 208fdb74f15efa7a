"""How far every worker of a host is: numbers in shared memory that only grow."""

from __future__ import annotations

from typing import NamedTuple

from paceline.comm.shm_segment import LINE_BYTES, Segment
from paceline.comm.shm_wait import WORDS_PER_LINE, ShmWaiter
from paceline.errors import RunError

OPERATIONS = ("barrier", "all_reduce", "reduce_scatter", "broadcast", "gather", "all_gather", "scatter")


class ShmGroup(NamedTuple):
    """What a worker takes part in: all must name the same, or they would mix up each other's numbers."""

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
    """How far every worker is, in numbers that only grow; each worker writes its own line alone."""

    READY, SUMMED, FREE = 0, 1, 2
    STAMPS, NUM_STAMPS = 4, 4  # what the last pieces belong to; nobody is four pieces ahead of another

    def __init__(self, segment: Segment, offset: int, bells: ShmWaiter) -> None:
        self._words = segment.words(offset, WORDS_PER_LINE * bells.world_size)
        self._bells = bells
        self._mine = WORDS_PER_LINE * bells.rank
        self._lines = range(0, WORDS_PER_LINE * bells.world_size, WORDS_PER_LINE)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return LINE_BYTES * world_size

    def tell(self, kind: int, number: int) -> None:
        self._words[self._mine + kind] = number
        self._bells.ring_all()

    def first_behind(self, kind: int, number: int) -> int:
        """A worker that is not as far yet; -1 when everybody is."""
        words = self._words
        for line in self._lines:
            if words[line + kind] < number:
                return line // WORDS_PER_LINE
        return -1

    def wait_all(self, kind: int, number: int) -> None:
        self._bells.wait(lambda: self.first_behind(kind, number))

    def wait_for(self, peer: int, kind: int, number: int) -> None:
        words, word = self._words, peer * WORDS_PER_LINE + kind
        self._bells.wait(lambda: peer if words[word] < number else -1)

    # Pieces of collectives: a worker says which one it is in, and compares.

    def announce(self, number: int, group: ShmGroup) -> None:
        """This worker has done its part of a piece."""
        self._words[self._mine + self.STAMPS + number % self.NUM_STAMPS] = group.packed()
        self.tell(self.READY, number)

    def meet(self, number: int, group: ShmGroup) -> None:
        """Wait until everybody has."""
        self.wait_all(self.READY, number)
        for peer in range(self._bells.world_size):
            self._compare(peer, number, group)

    def hear(self, peer: int, number: int, group: ShmGroup) -> None:
        """Wait until one has."""
        self.wait_for(peer, self.READY, number)
        self._compare(peer, number, group)

    def _compare(self, peer: int, number: int, group: ShmGroup) -> None:
        theirs = self._words[peer * WORDS_PER_LINE + self.STAMPS + number % self.NUM_STAMPS]
        if theirs != group.packed():
            mine, other = self._bells.names[self._bells.rank], self._bells.names[peer]
            raise RunError(
                f"workers are out of step: worker {mine} is in {group}, worker {other} in "
                f"{ShmGroup.unpacked(theirs)}; every worker must call the same collectives in the same order"
            )
