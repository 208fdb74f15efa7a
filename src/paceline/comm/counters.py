"""How far every worker of a host is: numbers in shared memory that only grow."""

from __future__ import annotations

from paceline.comm.bell import WORDS_PER_LINE, Bells
from paceline.comm.segment import LINE_BYTES, Segment


class Counters:
    """How far every worker is, in numbers that only grow; each worker writes its own line alone."""

    READY, SUMMED, FREE = 0, 1, 2

    def __init__(self, segment: Segment, offset: int, bells: Bells) -> None:
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
