"""Calibrate activations for int8: collect histograms of their values, and choose the range that each grid covers.

A grid is the scale and zero point of a quantized tensor (`quantized.Grid`). Values outside its range are clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import UsageError, unknown
from paceline.quantize.graph import Graph
from paceline.quantize.quantized import Grid, grid_for

NUM_BINS = 2048
NUM_CANDIDATES = 128  # number of ranges that the methods `entropy` and `mse` compare
NUM_LEVELS = 256  # number of 8-bit integers
Batches = Callable[[], Iterable[Tensor]]  # returns the same batches on every call
Range = tuple[float, float]  # lowest and highest value that is not clipped


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the values of a tensor, in bins of equal width between the tensor's minimum and maximum."""

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
        """Return the counts of all bins, after limiting the count of the bin around zero.

        The limit is the larger count of the two neighbouring bins. Quantization represents zero exactly, so a large
        number of zeros must not influence the choice of a range.
        """
        counts = self.counts.clone()
        if self.low <= 0 <= self.high and self.width > 0:
            zero_bin = min(int(-self.low / self.width), len(counts) - 1)
            neighbours = [float(counts[i]) for i in (zero_bin - 1, zero_bin + 1) if 0 <= i < len(counts)]
            counts[zero_bin] = min(float(counts[zero_bin]), max(neighbours))
        return counts

    def coarser(self, num_bins: int) -> Histogram:
        """Return a histogram with fewer, wider bins. `num_bins` must divide the current number of bins."""
        return Histogram(self.low, self.high, self.counts.view(num_bins, -1).sum(1))


def histogram_of(values: Tensor, low: float, high: float, num_bins: int = NUM_BINS) -> Tensor:
    """Return the number of values in each of `num_bins` bins of equal width between `low` and `high`, as float64.

    If `low` equals `high`, all values are counted in the first bin.
    """
    if high <= low:
        counts = torch.zeros(num_bins, dtype=torch.float64)
        counts[0] = values.numel()
        return counts
    return torch.histc(values.detach().flatten().float(), num_bins, low, high).double()


@torch.no_grad()
def observe(graph: Graph, batches: Batches) -> dict[str, Histogram]:
    """Return a histogram, by tensor name, of each tensor that needs its own scale and zero point.

    The graph runs twice over all batches: first to find the minimum and maximum of each tensor, then to count values.
    """
    limits: dict[str, tuple[float, float]] = {}

    def widen(name: str, values: Tensor) -> None:
        if not graph.has_grid(name) or not values.is_floating_point():
            return
        low, high = (float(value) for value in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError(f"tensor {name!r} is not finite on the calibration data; check the weights and the data")
        old = limits.get(name, (low, high))
        limits[name] = (min(low, old[0]), max(high, old[1]))

    num_batches = 0
    for images in batches():
        graph.run(images, widen)
        num_batches += 1
    if not num_batches:
        raise UsageError("the calibration set is empty; give at least one sample")
    counts = {name: torch.zeros(NUM_BINS, dtype=torch.float64) for name in limits}

    def count(name: str, values: Tensor) -> None:
        if name in counts:
            counts[name] += histogram_of(values, *limits[name])

    for images in batches():
        graph.run(images, count)
    return {name: Histogram(*limits[name], counts[name]) for name in limits}


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Name and options of the method that chooses, for each activation, the range outside which values are clipped."""

    method: str
    symmetric: bool = False
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("calibration", self.method, METHODS)
        if not 50 < self.percentile <= 100:
            raise UsageError(f"--percentile must be above 50 and at most 100, not {self.percentile:g}")

    def grid(self, histogram: Histogram) -> Grid:
        return grid_for(*self.range(histogram), symmetric=self.symmetric)

    def range(self, histogram: Histogram) -> Range:
        return METHODS[self.method](histogram, self)


def _minmax(histogram: Histogram, calibration: Calibration) -> Range:
    """Return the minimum and the maximum of the observed values."""
    del calibration
    return histogram.low, histogram.high


def _percentile(histogram: Histogram, calibration: Calibration) -> Range:
    """Return the range of the values after dropping (100 - `percentile`) percent of them at each end.

    The minimum is kept if no value is negative, and the maximum if no value is positive.
    """
    shares = histogram.counts.cumsum(0) / histogram.counts.sum()
    inside = calibration.percentile / 100
    above = int(torch.searchsorted(shares, torch.tensor(inside, dtype=torch.float64)))
    below = int(torch.searchsorted(shares, torch.tensor(1 - inside, dtype=torch.float64), right=True))
    edges = histogram.edges
    low, high = float(edges[min(below, len(shares) - 1)]), float(edges[min(above + 1, len(shares))])
    return (histogram.low if histogram.low >= 0 else low), (histogram.high if histogram.high <= 0 else high)


def _entropy(histogram: Histogram, calibration: Calibration) -> Range:
    """Return the range for which clipping and rounding change the distribution least (Kullback-Leibler divergence)."""
    del calibration
    counts, centres = histogram.without_zero(), histogram.centres
    least, best = float("inf"), (histogram.low, histogram.high)
    for low, high in _candidates(histogram):
        inside = (centres >= low) & (centres <= high)
        if int(inside.sum()) < NUM_LEVELS:
            continue  # with one level per bin, rounding would seem to change nothing
        divergence = _divergence(counts, inside)
        if divergence < least:
            least, best = divergence, (low, high)
    return best


def _divergence(counts: Tensor, inside: Tensor) -> float:
    """Return the Kullback-Leibler divergence between a clipped distribution and its rounded form.

    `counts` has the number of values in each bin. The distribution is clipped to the bins that the mask `inside`
    selects, and rounded to `NUM_LEVELS` levels. The result is infinite if all selected bins are empty.
    """
    first, last = int(inside.nonzero()[0]), int(inside.nonzero()[-1])
    within = counts[first : last + 1]
    clipped = within.clone()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last + 1 :].sum()
    num_levels = min(NUM_LEVELS, len(within))
    level = torch.arange(len(within)) * num_levels // len(within)
    mass = torch.zeros(num_levels, dtype=torch.float64).index_add_(0, level, within)
    filled = torch.zeros(num_levels, dtype=torch.float64).index_add_(0, level, (within > 0).double())
    rounded = torch.where(within > 0, (mass / filled.clamp(min=1))[level], 0.0)
    if not clipped.sum() or not rounded.sum():
        return float("inf")
    original, approximate = clipped / clipped.sum(), rounded / rounded.sum()
    filled_bins = original > 0
    # A bin that only clipping fills is empty in the approximation. Without the clamp, the divergence would be infinite.
    p, q = original[filled_bins], approximate[filled_bins].clamp(min=1e-12)
    return float((p * (p / q).log()).sum())


def _mse(histogram: Histogram, calibration: Calibration) -> Range:
    """Return the range with the smallest squared error, caused by rounding inside the range and clipping outside."""
    counts, centres = histogram.without_zero(), histogram.centres
    least, best = float("inf"), (histogram.low, histogram.high)
    for low, high in _candidates(histogram):
        grid = grid_for(low, high, symmetric=calibration.symmetric)
        bottom, top = grid.range
        beyond = (centres - top).clamp(min=0) + (bottom - centres).clamp(min=0)
        rounding = torch.where(beyond > 0, 0.0, grid.scale**2 / 12)
        error = float((counts * (beyond.square() + rounding)).sum())
        if error < least:
            least, best = error, (low, high)
    return best


def _candidates(histogram: Histogram) -> list[Range]:
    """Return the ranges that `_entropy` and `_mse` compare, from the widest to the narrowest.

    There are `NUM_CANDIDATES` ranges around zero, limited to the minimum and maximum of the observed values. Both
    methods choose the widest of equally good ranges.
    """
    largest = max(-histogram.low, histogram.high)
    sizes = [largest * number / NUM_CANDIDATES for number in range(NUM_CANDIDATES, 0, -1)]
    return [(max(histogram.low, -size), min(histogram.high, size)) for size in sizes]


METHODS: dict[str, Callable[[Histogram, Calibration], Range]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
}


def grids_for(histograms: dict[str, Histogram], calibration: Calibration) -> dict[str, Grid]:
    """Return the grid (scale and zero point) of each tensor, chosen from its histogram."""
    return {name: calibration.grid(histogram) for name, histogram in histograms.items()}
