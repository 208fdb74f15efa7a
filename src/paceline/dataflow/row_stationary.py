"""Row-stationary dataflow in closed form: accesses per memory level and cycles of a mapping.

A mapping has seven parameters, named as in the Eyeriss papers: m filters and n images whose partial sums are in the
buffer, e output rows at a time, p filters and q channels in each PE, r sets of PEs on different channels and t sets on
different filters. All functions accept plain numbers and arrays of candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.dataflow.accesses import Accesses
from paceline.dataflow.chips import Chip
from paceline.dataflow.shape import Amount, Shape, ceiling


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Layout of a layer in space and time."""

    m: Amount
    n: Amount
    e: Amount
    p: Amount
    q: Amount
    r: Amount
    t: Amount

    def active_pes(self, shape: Shape) -> Amount:
        return shape.kernel_height * self.e * self.r * self.t


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Iteration counts of the loops around a pass."""

    images: Amount
    strips: Amount
    filters: Amount  # passes over the filters, each with p x t of them
    buffered: Amount  # groups of filters whose partial sums are in the buffer in turn
    channels: Amount
    input_rows: Amount  # of all strips together, counting overlaps twice
    filter_sets: Amount  # sets of PEs with different filters, summed over all passes
    channel_sets: Amount

    @classmethod
    def of(cls, shape: Shape, mapping: Mapping) -> Rounds:
        return cls(
            images=ceiling(shape.num_images, mapping.n),
            strips=ceiling(shape.output_height, mapping.e),
            filters=ceiling(shape.num_filters, mapping.p * mapping.t),
            buffered=ceiling(shape.num_filters, mapping.m),
            channels=ceiling(shape.num_channels, mapping.q * mapping.r),
            input_rows=shape.rows.read_in_strips(mapping.e),
            filter_sets=_sets_at_work(shape.num_filters, mapping.p, mapping.t),
            channel_sets=_sets_at_work(shape.num_channels, mapping.q, mapping.r),
        )

    @property
    def filter_loads(self) -> Amount:
        """Number of times the PEs receive each weight; once if they hold all filters at the same time."""
        return np.where(self.filters * self.channels == 1, 1, self.images * self.strips)


def buffer_banks(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Banks for the inputs and partial sums of a mapping; no bank holds both."""
    sums = mapping.n * mapping.m * mapping.e * shape.output_width * chip.word_bytes
    return input_banks(shape, mapping, chip) + np.ceil(sums / chip.buffer.bank_bytes)


def input_banks(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    inputs = mapping.n * mapping.q * mapping.r * shape.rows.read(mapping.e) * shape.row_reads * chip.word_bytes
    return np.ceil(inputs / chip.buffer.bank_bytes)


def filter_bytes(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """Bytes of the filters of one pass, which are prefetched into the buffer during the previous pass."""
    weights = mapping.p * mapping.t * mapping.q * mapping.r * shape.kernel_height * shape.kernel_width
    return weights * chip.word_bytes


def accesses(shape: Shape, mapping: Mapping) -> Accesses:
    """Words moved at every level for one group of a layer."""
    rounds = Rounds.of(shape, mapping)
    weights = shape.num_filters * shape.weights_per_output
    outputs, macs = shape.num_outputs, shape.num_multiplications
    pixels = shape.num_images * shape.num_channels
    # Inputs stay in the buffer if it holds all channels at once.
    input_loads = np.where(rounds.channels == 1, 1, rounds.buffered)
    input_dram = pixels * shape.rows.real_in_strips(mapping.e) * shape.columns.real * input_loads
    filter_dram = weights * rounds.filter_loads
    # Each PE receives the rows that it multiplies: a filter row per column, an input row per set of filters.
    filter_moves = weights * np.where(rounds.filter_loads == 1, mapping.e, rounds.images * shape.output_height)
    input_moves = pixels * shape.output_height * shape.kernel_height * shape.row_reads * rounds.filter_sets
    # A sum passes through the rows of all sets on its channels and returns from the buffer for the next round.
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
    """Cycles of one group by cause; `compute`, `input` and `partial_sum` overlap.

    A pass begins with loading filters and the first window of inputs, which is not overlapped: a PE has room for one
    set of them. The remaining inputs and the partial sums are transferred while the PEs multiply.
    """
    rounds = Rounds.of(shape, mapping)
    filters = _in_turns(shape.num_filters, mapping.p, mapping.t)
    channels = _in_turns(shape.num_channels, mapping.q, mapping.r)
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
    flowing = np.maximum(np.maximum(parts["compute"], parts["input"]), parts["partial_sum"])
    return flowing + parts["filter_load"] + parts["window_load"]


def _sets_at_work(whole: int, inner: Amount, sets: Amount) -> Amount:
    """Number of busy sets, summed over all rounds; the last round may need fewer."""
    return whole // (inner * sets) * sets + np.minimum(whole % (inner * sets), sets)


def _in_turns(whole: int, inner: Amount, sets: Amount) -> Amount:
    """Number of filters or channels that a PE processes in all rounds; the last round may be shorter."""
    rest = whole % (inner * sets)
    return whole // (inner * sets) * inner + ceiling(rest, sets)
