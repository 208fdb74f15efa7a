"""Accesses at each level of the memory, in words, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.dataflow.axis import Amount
from paceline.dataflow.chips import Chip
from paceline.results.dataflow import AccessCounts

LEVELS = ("dram", "buffer", "neighbour", "register_file")


@dataclass(frozen=True, kw_only=True)
class Accesses:
    """Words by level and by what they are; `neighbour` is between PEs and from the buffer's network into a PE."""

    dram: dict[str, Amount] = field(default_factory=dict)
    buffer: dict[str, Amount] = field(default_factory=dict)
    neighbour: dict[str, Amount] = field(default_factory=dict)
    register_file: dict[str, Amount] = field(default_factory=dict)

    def total(self, level: str) -> Amount:
        return sum(getattr(self, level).values())

    def energy(self, chip: Chip) -> dict[str, Amount]:
        """By level, relative to a multiply-accumulate."""
        return {level: self.total(level) * getattr(chip.energy, level) for level in LEVELS}

    def times(self, count: int) -> Accesses:
        """The same for several groups of a layer; plain whole numbers."""
        levels = {level: {kind: int(words) * count for kind, words in getattr(self, level).items()} for level in LEVELS}
        return Accesses(**levels)

    def counts(self) -> AccessCounts:
        """Plain whole numbers, as results have them."""
        return AccessCounts(
            **{level: {kind: int(words) for kind, words in getattr(self, level).items()} for level in LEVELS}
        )
