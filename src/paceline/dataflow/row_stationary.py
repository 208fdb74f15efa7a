"""Find the best mapping of a layer onto a row-stationary accelerator, and compute its cost.

A mapping has seven parameters, named as in the Eyeriss papers: m filters and n images whose partial sums are in the
buffer, e output rows at a time, p filters and q channels in each PE (processing element), r sets of PEs on different
channels and t sets on different filters. A set of PEs has one row of PEs per kernel row and one column per output row.
A pass is the work of the PEs between two loads of filters.

The search evaluates all candidates, and chooses the best by an objective. Candidates are mappings that fit the chip,
with the largest possible m and with other parameters from `part_sizes`. Functions accept either one mapping, as a
`Mapping` of numbers, or all candidates at once, as a `Mapping` of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from paceline.dataflow.accesses import Accesses
from paceline.dataflow.chips import Chip
from paceline.dataflow.shape import Amount, Shape, ceiling, part_sizes
from paceline.errors import UsageError, unknown

DEFAULT_OBJECTIVE = "dram-delay"


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Parameters that divide the work of a layer among PEs (processing elements) and passes.

    A pass is the work of the PEs between two loads of filters. Each field is a number, or an array with one value per
    candidate mapping.
    """

    m: Amount  # filters whose partial sums are in the buffer
    n: Amount  # images whose partial sums are in the buffer
    e: Amount  # output rows at a time
    p: Amount  # filters in each PE
    q: Amount  # channels in each PE
    r: Amount  # sets of PEs on different channels
    t: Amount  # sets of PEs on different filters

    def active_pes(self, shape: Shape) -> Amount:
        return shape.kernel_height * self.e * self.r * self.t


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Numbers of iterations of the loops around a pass, and other counts that depend on the mapping.

    A pass is the work of the PEs (processing elements) between two loads of filters.
    """

    images: Amount
    strips: Amount
    filters: Amount  # groups of p x t filters; a pass computes one group
    buffered: Amount  # groups of m filters; the buffer holds the partial sums of one group at a time
    channels: Amount  # groups of q x r channels; a pass computes one group
    input_rows: Amount  # of all strips together; a row that two strips read counts twice
    filter_sets: Amount  # busy sets of PEs with different filters, summed over the iterations of `filters`
    channel_sets: Amount  # busy sets of PEs with different channels, summed over the iterations of `channels`

    @classmethod
    def of(cls, shape: Shape, mapping: Mapping) -> Rounds:
        return cls(
            images=ceiling(shape.num_images, mapping.n),
            strips=ceiling(shape.output_height, mapping.e),
            filters=ceiling(shape.num_filters, mapping.p * mapping.t),
            buffered=ceiling(shape.num_filters, mapping.m),
            channels=ceiling(shape.num_channels, mapping.q * mapping.r),
            input_rows=shape.rows.read_in_strips(mapping.e),
            filter_sets=_busy_sets(shape.num_filters, mapping.p, mapping.t),
            channel_sets=_busy_sets(shape.num_channels, mapping.q, mapping.r),
        )

    @property
    def filter_loads(self) -> Amount:
        """Number of times that PEs load each weight: 1 if the PEs hold all weights at once.

        Otherwise, PEs load each weight once for every strip (e output rows) of every group of n images.
        """
        return np.where(self.filters * self.channels == 1, 1, self.images * self.strips)


def buffer_banks(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Return the number of buffer banks that a mapping needs for inputs and partial sums; no bank holds both."""
    sums = mapping.n * mapping.m * mapping.e * shape.output_width * chip.word_bytes
    return input_banks(shape, mapping, chip) + np.ceil(sums / chip.buffer.bank_bytes)


def input_banks(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    inputs = mapping.n * mapping.q * mapping.r * shape.rows.read(mapping.e) * shape.row_reads * chip.word_bytes
    return np.ceil(inputs / chip.buffer.bank_bytes)


def filter_bytes(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Return the size in bytes of the filters of one pass, which the buffer prefetches during the previous pass."""
    weights = mapping.p * mapping.t * mapping.q * mapping.r * shape.kernel_height * shape.kernel_width
    return weights * chip.word_bytes


def accesses(shape: Shape, mapping: Mapping) -> Accesses:
    """Return the number of words moved at every memory level for one channel group of a layer."""
    rounds = Rounds.of(shape, mapping)
    weights = shape.num_filters * shape.weights_per_output
    outputs, macs = shape.num_outputs, shape.num_multiplications
    pixels = shape.num_images * shape.num_channels
    # Inputs stay in the buffer if it holds all channels at once.
    input_loads = np.where(rounds.channels == 1, 1, rounds.buffered)
    input_dram = pixels * shape.rows.real_in_strips(mapping.e) * shape.columns.real * input_loads
    filter_dram = weights * rounds.filter_loads
    # Each PE receives the filter rows and the input rows that it multiplies. Each filter row goes to every column of a
    # set, and each input row goes to every set that has other filters.
    filter_moves = weights * np.where(rounds.filter_loads == 1, mapping.e, rounds.images * shape.output_height)
    input_moves = pixels * shape.output_height * shape.kernel_height * shape.row_reads * rounds.filter_sets
    # A sum moves through the rows of PEs of all sets with different channels. It returns from the buffer for each
    # further group of channels.
    hops = shape.kernel_height * rounds.channel_sets - rounds.channels
    sum_moves = outputs * (hops + rounds.channels - 1)
    return Accesses(
        dram={"filter": filter_dram, "input": input_dram, "partial_sum": outputs},
        buffer={
            "filter": 2 * filter_dram,
            "input_fill": input_dram,
            "input": pixels * rounds.input_rows * shape.row_reads * rounds.filters,
            "partial_sum": 2 * outputs * rounds.channels,
        },
        neighbour={"filter": filter_moves, "input": input_moves, "partial_sum": sum_moves},
        register_file={"filter": macs + filter_moves, "input": macs + input_moves, "partial_sum": 2 * macs},
    )


def cycles(shape: Shape, mapping: Mapping, chip: Chip) -> dict[str, Amount]:
    """Return the number of cycles of one channel group of a layer by cause: computing, or transferring a type of data.

    The PEs (processing elements) work in passes. A pass begins by loading filters (`filter_load`) and the first window
    of inputs (`window_load`). The PEs do not multiply during that time, because a PE has room for only one set of
    filters and one window. The remaining inputs (`input`) and the partial sums (`partial_sum`) are transferred while
    the PEs multiply (`compute`).
    """
    rounds = Rounds.of(shape, mapping)
    filters = _items_per_pe(shape.num_filters, mapping.p, mapping.t)
    channels = _items_per_pe(shape.num_channels, mapping.q, mapping.r)
    compute = filters * channels * shape.kernel_width * shape.output_width * shape.num_images * rounds.strips
    weights = shape.num_filters * shape.weights_per_output * rounds.filter_loads
    window = shape.num_channels * shape.kernel_width * rounds.input_rows * rounds.filters * rounds.images
    inputs = shape.num_images * shape.num_channels * rounds.input_rows * shape.row_reads * rounds.filters
    sums = shape.num_outputs * rounds.channels
    return {
        "compute": compute,
        "filter_load": np.ceil(weights / chip.network.filter),
        "window_load": np.ceil(window / chip.network.input),
        "input": np.ceil((inputs - window) / chip.network.input),
        "partial_sum": np.ceil(sums / chip.network.partial_sum),
    }


def total_cycles(parts: dict[str, Amount]) -> Amount:
    """Return the total number of cycles; among causes that overlap in time, only the longest counts.

    `parts` is the result of `cycles`: the number of cycles by cause.
    """
    flowing = np.maximum(np.maximum(parts["compute"], parts["input"]), parts["partial_sum"])
    return flowing + parts["filter_load"] + parts["window_load"]


def _busy_sets(whole: int, inner: Amount, sets: Amount) -> Amount:
    """Return the number of busy sets of PEs, summed over all rounds.

    `whole` is the number of filters or channels, which are divided into rounds. In a round, each of several sets (their
    number is the argument `sets`) computes `inner` filters or channels. The last round may need fewer sets.
    """
    return whole // (inner * sets) * sets + np.minimum(whole % (inner * sets), sets)


def _items_per_pe(whole: int, inner: Amount, sets: Amount) -> Amount:
    """Return the number of filters or channels that a PE processes in all rounds together.

    `whole` filters or channels are divided into rounds. In each round, `sets` sets of PEs compute `inner` filters or
    channels each. A PE may have fewer filters or channels in the last round.
    """
    rest = whole % (inner * sets)
    return whole // (inner * sets) * inner + ceiling(rest, sets)


def _energy(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    return sum(accesses(shape, mapping).energy(chip).values()) + shape.num_multiplications * chip.energy.mac


def _time(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Return the total cycles of one channel group of a layer, without the cycles in which the chip waits for DRAM.

    The search ignores the waiting, because its duration depends on how well the data can be compressed.
    """
    return total_cycles(cycles(shape, mapping, chip))


# Functions of a mapping, one of which the search minimises. Their values do not depend on the zeros in the data, which
# are not known in advance.
OBJECTIVES: dict[str, Callable[[Shape, Mapping, Chip], Amount]] = {
    "dram-delay": lambda shape, mapping, chip: accesses(shape, mapping).total("dram") * _time(shape, mapping, chip),
    "energy-delay": lambda shape, mapping, chip: _energy(shape, mapping, chip) * _time(shape, mapping, chip),
    "energy": _energy,
    "time": _time,
}


def check_objective(name: str) -> None:
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)


def choose_mapping(name: str, shape: Shape, chip: Chip, objective: str = DEFAULT_OBJECTIVE) -> Mapping:
    """Return the mapping that minimises `objective` for one channel group of a layer.

    Raises UsageError if no mapping fits the chip. `name` is the name of the layer for the error message.
    """
    check_objective(objective)
    try:
        return best_mapping(shape, chip, objective)
    except _Unmappable as problem:
        raise UsageError(f"layer {name} cannot be mapped onto {chip.name}: {problem}") from None


class _Unmappable(Exception):
    """Raised if no mapping fits the chip; the message names the resource that is too small."""


@lru_cache(maxsize=256)
def best_mapping(shape: Shape, chip: Chip, objective: str) -> Mapping:
    """Return the mapping with the lowest value of `objective` and, among equals, the lowest energy."""
    candidates = _candidates(shape, chip)
    order = np.lexsort((_energy(shape, candidates, chip), OBJECTIVES[objective](shape, candidates, chip)))
    return Mapping(**{key: int(values[order[0]]) for key, values in vars(candidates).items()})


def _candidates(shape: Shape, chip: Chip) -> Mapping:
    """Return all mappings that the search compares, as one `Mapping` of arrays.

    Raises _Unmappable if no mapping fits the chip.
    """
    _check_kernel(shape, chip)
    per_pe = np.array(list(_pe_choices(shape, chip)), dtype=np.int64)
    sets = np.array(list(_set_choices(shape, chip)), dtype=np.int64)
    images = np.array(part_sizes(shape.num_images, shape.num_images), dtype=np.int64)
    choices = np.indices((len(per_pe), len(sets), len(images))).reshape(3, -1)
    (p, q), (e, r, t), n = per_pe[choices[0]].T, sets[choices[1]].T, images[choices[2]]
    mappings = Mapping(m=np.minimum(p * t, shape.num_filters), n=n, e=e, p=p, q=q, r=r, t=t)
    # A PE needs no more filters than a t-th of all filters, and no more channels than an r-th of all channels.
    fits = (p <= ceiling(shape.num_filters, t)) & (q <= ceiling(shape.num_channels, r))
    fits &= filter_bytes(shape, mappings, chip) <= chip.buffer.filter_bytes
    fits &= buffer_banks(shape, mappings, chip) <= chip.buffer.banks
    if not fits.any():
        raise _Unmappable(
            "even the smallest strip of its output leaves no room for inputs and partial sums in the buffer's "
            f"{chip.buffer.banks} banks of {chip.buffer.bank_bytes} bytes"
        )
    mappings = Mapping(**{key: values[fits] for key, values in vars(mappings).items()})
    return replace(mappings, m=_most_filters(shape, mappings, chip))


def _most_filters(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Return the largest number of filters, m, whose partial sums fit into the buffer at once.

    The result is the number of all filters, or else a multiple of the number of filters per pass. A larger m needs
    fewer loads of inputs and has no disadvantage.
    """
    per_filter = mapping.n * mapping.e * shape.output_width * chip.word_bytes
    free = (chip.buffer.banks - input_banks(shape, mapping, chip)) * chip.buffer.bank_bytes
    per_pass = mapping.p * mapping.t
    most = np.minimum(free // per_filter, shape.num_filters).astype(np.int64)
    return np.where(most == shape.num_filters, most, most // per_pass * per_pass)


def _check_kernel(shape: Shape, chip: Chip) -> None:
    """Raise _Unmappable if the kernel has more rows than the array, or rows too long for the scratch pads of a PE."""
    pads = chip.scratch_pads
    if shape.kernel_height > chip.rows:
        problem = f"its {shape.kernel_height} filter rows need as many rows of PEs, but the chip has {chip.rows}"
    elif shape.kernel_width > pads.input:
        problem = f"a row of {shape.kernel_width} weights needs as many words for inputs, but a PE has {pads.input}"
    elif shape.kernel_width > pads.filter:
        problem = f"a row of {shape.kernel_width} weights does not fit into a PE's {pads.filter} words"
    else:
        return
    raise _Unmappable(problem)


def _pe_choices(shape: Shape, chip: Chip) -> Iterator[tuple[int, int]]:
    """Yield pairs (p, q) of values from `part_sizes`: p filters and q channels that fit into a PE's scratch pads."""
    pads = chip.scratch_pads
    for p in part_sizes(shape.num_filters, pads.partial_sum):
        for q in part_sizes(shape.num_channels, pads.input // shape.kernel_width):
            if p * q * shape.kernel_width <= pads.filter:
                yield p, q


def _set_choices(shape: Shape, chip: Chip) -> Iterator[tuple[int, int, int]]:
    """Yield triples (e, r, t) of values from `part_sizes` for which the array has enough PEs.

    A set has e columns of PEs, one per output row. There are r x t sets: for each of t groups of filters, r sets work
    on different channels. A set wider than the array is split, and its parts are placed below each other.
    """
    down = chip.rows // shape.kernel_height
    for e in part_sizes(shape.output_height, shape.output_height):
        room = down * (chip.columns // e) if e <= chip.columns else down // math.ceil(e / chip.columns)
        for r in part_sizes(shape.num_channels, room):
            for t in part_sizes(shape.num_filters, room // r):
                yield e, r, t
