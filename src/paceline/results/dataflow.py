"""Results of `paceline dataflow`: costs of a convolution or a network on a simulated CNN accelerator."""

from __future__ import annotations

from typing import Any

from paceline.results.value import Value

ENERGY_LEVELS = ("mac", "register_file", "neighbour", "buffer", "dram")


class AccessCounts(Value, frozen=True, kw_only=True):
    """Numbers of words moved, by memory level (the fields) and by type of data, such as `filter` (the keys)."""

    dram: dict[str, int]
    buffer: dict[str, int]
    neighbour: dict[str, int]
    register_file: dict[str, int]

    def total(self, level: str) -> int:
        words: dict[str, int] = getattr(self, level)
        return sum(words.values())


class EnergyByLevel(Value, frozen=True, kw_only=True):
    """Energy by memory level, in units of the energy of one multiply-accumulate."""

    mac: float
    dram: float
    buffer: float
    neighbour: float
    register_file: float

    def by_level(self, per: float = 1.0) -> dict[str, float]:
        """Return the energy of each level divided by `per`, in the order of ENERGY_LEVELS."""
        return {level: getattr(self, level) / per for level in ENERGY_LEVELS}


class LayerEnergy(EnergyByLevel, frozen=True, kw_only=True):
    total: float
    per_mac: float
    over_row_stationary: float | None = None


class Gating(Value, frozen=True, kw_only=True):
    """Number of multiplications by zero, which processing elements (PEs) skip, and the energy saved by skipping.

    The energy is in units of the energy of one multiply-accumulate.
    """

    products: int
    energy_saved: float


class ConvShape(Value, frozen=True, kw_only=True):
    num_images: int
    num_filters: int
    num_channels: int
    input_height: int
    input_width: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    num_groups: int

    @property
    def num_weights(self) -> int:
        return self.num_filters * self.num_channels * self.kernel_height * self.kernel_width * self.num_groups


class Cost(Value, frozen=True, kw_only=True):
    """Costs of running one layer on an accelerator, or of all layers of a network together."""

    macs: int
    cycles: int
    processing_s: float  # on the chip, without waiting for DRAM
    dram_s: float
    time_s: float
    utilisation: float  # fraction of all PE (processing element) cycles during time_s with a multiplication
    processing_utilisation: float
    accesses: AccessCounts
    buffer_traffic_bytes: int
    dram_bytes: int
    dram_uncompressed_bytes: int
    energy: LayerEnergy
    gated: Gating
    energy_by_dataflow: dict[str, LayerEnergy] | None = None


class LayerCost(Cost, frozen=True, kw_only=True):
    name: str
    shape: ConvShape
    input_zeros: float
    output_zeros: float
    filter_zeros: float | None
    is_counted: bool  # whether zeros were counted in real tensors instead of assumed
    mapping: dict[str, int]
    active_pes: int
    pes: int
    cycles_by_cause: dict[str, int]
    bound: str  # compute, buffer or dram


class NetworkCost(Value, frozen=True, kw_only=True):
    network: str
    batch: int
    schema: int
    chip: str
    chip_description: str
    word_bits: int
    objective: str
    layers: list[LayerCost]
    total: Cost


class LogicalSet(Value, frozen=True, kw_only=True):
    """Size of a logical set (the PEs that compute one 2D convolution), and the number of sets computed side by side."""

    rows: int
    columns: int
    side_by_side: int


class ArrayUse(Value, frozen=True, kw_only=True):
    rows: int
    columns: int
    pes: int
    utilisation: float


class ConvResult(Value, frozen=True, kw_only=True):
    """Result of simulating one convolution cycle by cycle."""

    schema: int
    model: str
    multiply_cycles: int
    add_cycles: int
    output: list[Any]  # nested lists, as deep as the input
    cycles: int
    pes: int
    utilisation: float
    set: LogicalSet
    array: ArrayUse
    folds: int
    strip_columns: int
    multiplications: int
    additions: int
    accesses: AccessCounts
    energy: EnergyByLevel
