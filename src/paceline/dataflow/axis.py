"""One direction of a convolution: which pixels its outputs read, some outputs at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Amount = Any  # a number, or an array with one for every candidate


def ceiling(whole: Amount, part: Amount) -> Amount:
    return -(-whole // part)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Pixels of an input along one side, with padding at both ends, under a kernel that moves by a stride."""

    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def padded_size(self) -> int:
        return self.size + 2 * self.padding

    @property
    def outputs(self) -> int:
        return (self.padded_size - self.kernel) // self.stride + 1

    @property
    def step(self) -> int:
        """New pixels that an output needs after its neighbour; a stride beyond the kernel passes over the rest."""
        return min(self.stride, self.kernel)

    def read(self, outputs: Amount) -> Amount:
        """Pixels that some outputs side by side read, padding included."""
        return (outputs - 1) * self.step + self.kernel

    def read_in_strips(self, part: Amount) -> Amount:
        """The same of all outputs in strips of `part`, the last one shorter: what two strips read counts twice."""
        strips = ceiling(self.outputs, part)
        return (self.outputs - strips) * self.step + strips * self.kernel

    def real_in_strips(self, part: Amount) -> Amount:
        """The same without padding."""
        return _for_each(self._real, part)

    @property
    def real(self) -> int:
        """Pixels without padding that any output reads."""
        return self._real(self.outputs)

    def blocks_in_strips(self, block: Amount, part: Amount) -> Amount:
        """Blocks of so many such pixels, where no block holds pixels of two strips."""
        return _for_each(self._blocks, block, part)

    def outputs_of_blocks(self, block: Amount, part: Amount) -> Amount:
        """The other way round: outputs that such a block goes into, added up over all blocks."""
        return _for_each(self._outputs_of_blocks, block, part)

    def _real(self, part: int) -> int:
        return int(self._new(part).sum())

    def _blocks(self, block: int, part: int) -> int:
        pixels = np.add.reduceat(self._new(part), np.arange(0, self.outputs, part))
        return int(ceiling(pixels, block).sum())

    def _outputs_of_blocks(self, block: int, part: int) -> int:
        new = self._new(part)
        read = np.cumsum(new)
        begin = np.arange(self.outputs) // part * part
        end = read - (read - new)[begin]  # of each output's pixels, among all that its strip reads
        start = end - self._last(self.kernel)
        return int(((end - 1) // block - start // block + 1)[end > start].sum())

    def _new(self, part: int) -> NDArray[np.int64]:
        """Pixels that each output is the first of its strip to read."""
        new = self._last(self.step)
        new[::part] = self._last(self.kernel)[::part]
        return new

    def _last(self, count: int) -> NDArray[np.int64]:
        """How many of the last pixels of each output's window lie within the input."""
        ends = np.arange(self.outputs, dtype=np.int64) * self.stride + self.kernel
        within = np.minimum(ends, self.padding + self.size) - np.maximum(ends - count, self.padding)
        return np.asarray(np.maximum(within, 0))


def _for_each(count: Callable[..., int], *sizes: Amount) -> Amount:
    """Counted once for all sizes that there are together among the candidates."""
    alike = np.broadcast_arrays(*sizes)
    key = np.ravel_multi_index(alike, [int(one.max()) + 1 for one in alike])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    flat = [one.ravel() for one in alike]
    found = np.array([count(*(int(one[index]) for one in flat)) for index in first], dtype=np.int64)
    return found[which].reshape(alike[0].shape)
