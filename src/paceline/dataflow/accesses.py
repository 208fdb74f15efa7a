"""Accesses per memory level in words, their energy, and run-length compression of zeros in DRAM traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dataflow.chips import Chip
from paceline.dataflow.shape import Amount
from paceline.results.dataflow import AccessCounts

LEVELS = ("dram", "buffer", "neighbour", "register_file")


@dataclass(frozen=True, kw_only=True)
class Accesses:
    """Words moved, by level and data type; `neighbour` counts words that a PE gets from PEs or the on-chip network."""

    dram: dict[str, Amount] = field(default_factory=dict)
    buffer: dict[str, Amount] = field(default_factory=dict)
    neighbour: dict[str, Amount] = field(default_factory=dict)
    register_file: dict[str, Amount] = field(default_factory=dict)

    def total(self, level: str) -> Amount:
        return sum(getattr(self, level).values())

    def energy(self, chip: Chip) -> dict[str, Amount]:
        """Return the energy by level, relative to a multiply-accumulate."""
        return {level: self.total(level) * getattr(chip.energy, level) for level in LEVELS}

    def times(self, count: int) -> Accesses:
        """Return the accesses of `count` groups, as plain integers."""
        levels = {level: {kind: int(words) * count for kind, words in getattr(self, level).items()} for level in LEVELS}
        return Accesses(**levels)

    def counts(self) -> AccessCounts:
        """Convert to the result type, with plain integers."""
        return AccessCounts(
            **{level: {kind: int(words) for kind, words in getattr(self, level).items()} for level in LEVELS}
        )


def compressed_share(zeros: float, chip: Chip) -> float:
    """Return the expected compressed size over the plain size if zeros are independent; at most 1, by sending plain.

    Each non-zero value carries the number of zeros before it. A run that is too long for its counter ends with a pair
    whose value is zero, which happens once per 2^run_bits zeros.
    """
    longest: int = 2**chip.compression.run_bits
    pairs = (1 - zeros) / (1 - zeros**longest) if zeros < 1 else 1 / longest
    return min(1.0, pairs * _pair_bits(chip) / chip.word_bits)


def encoded_share(values: NDArray[Any], chip: Chip) -> float:
    """Return the compressed size of values over their plain size; a last pair with value 0 ends trailing zeros."""
    longest: int = 2**chip.compression.run_bits
    flat = values.ravel()
    ends = np.flatnonzero(flat)
    runs = np.diff(ends, prepend=-1) - 1
    rest = flat.size - (int(ends[-1]) + 1 if ends.size else 0)
    pairs = ends.size + int((runs // longest).sum()) + -(-rest // longest)
    words = -(-pairs // chip.compression.pairs_per_word)
    return min(1.0, words * chip.compression.compressed_word_bits / (flat.size * chip.word_bits))


def _pair_bits(chip: Chip) -> float:
    return chip.compression.compressed_word_bits / chip.compression.pairs_per_word
