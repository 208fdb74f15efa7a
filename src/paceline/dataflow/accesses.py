"""Memory accesses of a layer on the accelerator, their energy, and the compression of DRAM traffic."""

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
    """Number of words moved at each memory level, by type of data, such as `filter` or `input`.

    The level `neighbour` counts the words that a PE (processing element) receives from another PE or from the on-chip
    network.
    """

    dram: dict[str, Amount] = field(default_factory=dict)
    buffer: dict[str, Amount] = field(default_factory=dict)
    neighbour: dict[str, Amount] = field(default_factory=dict)
    register_file: dict[str, Amount] = field(default_factory=dict)

    def total(self, level: str) -> Amount:
        return sum(getattr(self, level).values())

    def energy(self, chip: Chip) -> dict[str, Amount]:
        """Return the energy of the accesses by memory level, in the unit of `chip.energy`."""
        return {level: self.total(level) * getattr(chip.energy, level) for level in LEVELS}

    def times(self, count: int) -> Accesses:
        """Given the accesses of one group of a layer, return those of `count` equal groups, as integers."""
        levels = {level: {kind: int(words) * count for kind, words in getattr(self, level).items()} for level in LEVELS}
        return Accesses(**levels)

    def counts(self) -> AccessCounts:
        """Convert to `AccessCounts`, the type that results store, with plain integers."""
        return AccessCounts(
            **{level: {kind: int(words) for kind, words in getattr(self, level).items()} for level in LEVELS}
        )


def compressed_share(zeros: float, chip: Chip) -> float:
    """Return the expected compressed size of data, divided by its uncompressed size.

    `zeros` is the share of zeros in the data. Zeros are assumed to lie at random positions. The result is at most 1,
    because data that would become longer is sent uncompressed.

    The run-length encoding stores pairs of a non-zero value and the number of zeros before it. That number has
    `chip.compression.run_bits` bits. In a run of zeros that is too long for these bits, every 2^run_bits zeros become a
    pair whose value is zero.
    """
    longest: int = 2**chip.compression.run_bits
    pairs = (1 - zeros) / (1 - zeros**longest) if zeros < 1 else 1 / longest
    return min(1.0, pairs * _pair_bits(chip) / chip.word_bits)


def encoded_share(values: NDArray[Any], chip: Chip) -> float:
    """Return the exact size of `values` in the chip's run-length encoding, divided by their uncompressed size.

    The result is at most 1, because data that would become longer is sent uncompressed. The encoding stores pairs of a
    value and the number of zeros before the value. Zeros after the last non-zero value become pairs whose value is 0.
    """
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
