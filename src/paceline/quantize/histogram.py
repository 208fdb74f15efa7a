"""How the numbers of a tensor are spread, counted batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.quantize.graph import Graph

NUM_BINS = 2048
Batches = Callable[[], Iterable[Tensor]]  # the same batches every time


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of numbers in equal bins from the smallest to the largest."""

    low: float
    high: float
    counts: Tensor  # float64

    @property
    def width(self) -> float:
        return (self.high - self.low) / len(self.counts)

    @property
    def edges(self) -> Tensor:
        return torch.linspace(self.low, self.high, len(self.counts) + 1, dtype=torch.float64)

    @property
    def centres(self) -> Tensor:
        edges = self.edges
        return (edges[1:] + edges[:-1]) / 2

    def without_zero(self) -> Tensor:
        """Counts, that of zero's bin brought down to its neighbours': zero is exact on every grid, however often."""
        counts = self.counts.clone()
        if self.low <= 0 <= self.high and self.width > 0:
            place = min(int(-self.low / self.width), len(counts) - 1)
            around = [float(counts[i]) for i in (place - 1, place + 1) if 0 <= i < len(counts)]
            counts[place] = min(float(counts[place]), max(around))
        return counts

    def coarser(self, num_bins: int) -> Histogram:
        """As many numbers in fewer bins."""
        return Histogram(self.low, self.high, self.counts.view(num_bins, -1).sum(1))


def histogram_of(values: Tensor, low: float, high: float, num_bins: int = NUM_BINS) -> Tensor:
    """Counts of a tensor's numbers; where all of them are the same, they stand in the first bin."""
    if high <= low:
        counts = torch.zeros(num_bins, dtype=torch.float64)
        counts[0] = values.numel()
        return counts
    return torch.histc(values.detach().flatten().float(), num_bins, low, high).double()


@torch.no_grad()
def observe(graph: Graph, batches: Batches) -> dict[str, Histogram]:
    """Histograms of the input and of every tensor that gets a grid of its own, over all batches, in two passes."""
    limits: dict[str, tuple[float, float]] = {}

    def widen(name: str, values: Tensor) -> None:
        if not graph.has_grid(name) or not values.is_floating_point():
            return
        low, high = (float(value) for value in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError(f"tensor {name!r} is not finite on the calibration data, so that it has no range")
        old = limits.get(name, (low, high))
        limits[name] = (min(low, old[0]), max(high, old[1]))

    num_batches = 0
    for images in batches():
        graph.run(images, widen)
        num_batches += 1
    if not num_batches:
        raise UsageError("the calibration set is empty: activations have no range without at least one sample")
    counts = {name: torch.zeros(NUM_BINS, dtype=torch.float64) for name in limits}

    def count(name: str, values: Tensor) -> None:
        if name in counts:
            counts[name] += histogram_of(values, *limits[name])

    for images in batches():
        graph.run(images, count)
    return {name: Histogram(*limits[name], counts[name]) for name in limits}
