"""Run-length coding of zeros: what is kept of a stream on its way to DRAM."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dataflow.chips import Chip


def compressed_share(zeros: float, chip: Chip) -> float:
    """Expected size over plain size, where zeros fall independently; at most 1, as plain values may be sent instead.

    Each non-zero value carries the number of zeros before it. A run that is too long for its counter is closed with a
    zero as its value, which happens once per 2^run_bits zeros.
    """
    longest: int = 2**chip.compression.run_bits
    pairs = (1 - zeros) / (1 - zeros**longest) if zeros < 1 else 1 / longest
    return min(1.0, pairs * _pair_bits(chip) / chip.word_bits)


def encoded_share(values: NDArray[Any], chip: Chip) -> float:
    """Size over plain size of values that are at hand; zeros at the end are a last pair with value 0."""
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
