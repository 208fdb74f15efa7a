"""Compute the time, memory accesses and energy of each layer of a network on a chip.

The energy is compared with that of the baseline dataflows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.dataflow.accesses import LEVELS, Accesses, compressed_share
from paceline.dataflow.baselines import BASELINES, best_accesses
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import PUBLISHED, LayerShape, with_unique_names
from paceline.dataflow.row_stationary import DEFAULT_OBJECTIVE, accesses, choose_mapping, cycles, total_cycles
from paceline.errors import UsageError
from paceline.results.dataflow import AccessCounts, ConvShape, Cost, Gating, LayerCost, LayerEnergy, NetworkCost
from paceline.results.study import SCHEMA
from paceline.results.value import changed

ROW_STATIONARY = "row-stationary"


def analyse(
    layers: Sequence[LayerShape],
    chip: Chip,
    *,
    network: str = "",
    batch: int = 1,
    objective: str = DEFAULT_OBJECTIVE,
    with_baselines: bool = True,
) -> NetworkCost:
    """Return the cost of every layer and of the whole network on a chip.

    `objective` is the quantity that the mapping of each layer minimises. `network` and `batch` are only copied into the
    result.
    """
    rows = [
        analyse_layer(layer, chip, objective=objective, with_baselines=with_baselines)
        for layer in with_unique_names(layers)
    ]
    return NetworkCost(
        network=network,
        batch=batch,
        schema=SCHEMA,
        chip=chip.name,
        chip_description=chip.about,
        word_bits=chip.word_bits,
        objective=objective,
        layers=rows,
        total=_total(rows, chip),
    )


def analyse_layer(layer: LayerShape, chip: Chip, *, objective: str, with_baselines: bool) -> LayerCost:
    """Return the cost of one layer, with the mapping that minimises the quantity `objective`."""
    shape, groups = layer.shape, layer.num_groups
    mapping = choose_mapping(layer.name, shape, chip, objective)
    words = accesses(shape, mapping).times(groups)
    parts = {name: int(count) * groups for name, count in cycles(shape, mapping, chip).items()}
    cycle_count = int(total_cycles(parts))
    dram_bytes = _dram_bytes(layer, words, chip)
    processing_s, dram_s = cycle_count / chip.clock_hz, sum(dram_bytes.values()) / chip.dram.bytes_per_s
    time_s = max(processing_s, dram_s)
    energy = _energy(words, layer, chip)
    by_dataflow = None
    if with_baselines:
        by_dataflow = {ROW_STATIONARY: energy} | {
            name: _energy(best_accesses(name, shape, chip).times(groups), layer, chip) for name in BASELINES
        }
    return LayerCost(
        name=layer.name,
        shape=ConvShape(**asdict(shape), num_groups=groups),
        input_zeros=layer.input_zeros,
        output_zeros=layer.output_zeros,
        filter_zeros=layer.filter_zeros,
        is_counted=layer.zero_products is not None,
        macs=layer.num_macs,
        mapping=asdict(mapping),
        active_pes=mapping.active_pes(shape),
        pes=chip.num_pes,
        cycles=cycle_count,
        cycles_by_cause=parts,
        processing_s=processing_s,
        dram_s=dram_s,
        time_s=time_s,
        bound=_bound(parts, processing_s, dram_s),
        utilisation=_utilisation(layer.num_macs, time_s, chip),
        processing_utilisation=_utilisation(layer.num_macs, processing_s, chip),
        accesses=words.counts(),
        buffer_traffic_bytes=int((words.buffer["input"] + words.buffer["partial_sum"]) * chip.word_bytes),
        dram_bytes=round(sum(dram_bytes.values())),
        dram_uncompressed_bytes=int(words.total("dram") * chip.word_bytes),
        energy=energy,
        gated=_gating(layer, chip),
        energy_by_dataflow=by_dataflow,
    )


def read_network(
    name: str,
    chip: Chip,
    *,
    num_images: int,
    input_shape: tuple[int, ...] | None,
    with_linear: bool,
    runs: Path,
    trust: bool = False,
) -> tuple[str, list[LayerShape]]:
    """Return the title and the layers of a published network, a model, a stored run or a quantized model.

    For a published network, torch is not imported.
    """
    if name in PUBLISHED:
        if input_shape is not None or with_linear:
            raise UsageError(f"{name} is a fixed list of published convolutions; leave out --input-shape and --linear")
        return name, PUBLISHED[name](num_images)
    from paceline.dataflow.model_layers import read_layers

    return read_layers(
        name, chip, num_images=num_images, input_shape=input_shape, with_linear=with_linear, runs=runs, trust=trust
    )


def _dram_bytes(layer: LayerShape, words: Accesses, chip: Chip) -> dict[str, float]:
    """Return the bytes of DRAM traffic by type of data.

    Inputs and outputs are compressed if compression makes them shorter. Filters are never compressed.
    """
    shares = {
        "filter": 1.0,
        "input": _share(layer.input_share, layer.input_zeros, chip),
        "partial_sum": _share(layer.output_share, layer.output_zeros, chip),
    }
    return {kind: count * chip.word_bytes * shares[kind] for kind, count in words.dram.items()}


def _share(counted: float | None, zeros: float, chip: Chip) -> float:
    return compressed_share(zeros, chip) if counted is None else counted


def _gating(layer: LayerShape, chip: Chip) -> Gating:
    """Return the multiplications and the energy that zero gating saves.

    If an input is zero, a processing element (PE) with zero gating skips the multiplication, the read of the weight,
    and the read and write of the partial sum.
    """
    share = layer.input_zeros if layer.zero_products is None else layer.zero_products
    skipped = round(layer.num_macs * share)
    return Gating(products=skipped, energy_saved=skipped * (chip.energy.mac + 3 * chip.energy.register_file))


def _bound(parts: Mapping[str, int], processing_s: float, dram_s: float) -> str:
    """Return what limits the speed of a layer: `dram` if the transfers to and from DRAM take longer than processing.

    Otherwise, return `buffer` if moving words between the buffer and the PEs takes longer than computing, and `compute`
    if not.
    """
    if dram_s > processing_s:
        return "dram"
    moving = parts["filter_load"] + parts["window_load"] + max(parts["input"], parts["partial_sum"])
    return "buffer" if moving > parts["compute"] else "compute"


def _utilisation(macs: int, time_s: float, chip: Chip) -> float:
    """Return `macs` divided by the number of multiplications that all PEs of the chip can do in `time_s` seconds."""
    return macs / (chip.num_pes * time_s * chip.clock_hz)


def _energy(words: Accesses, layer: LayerShape, chip: Chip) -> LayerEnergy:
    """Return the energy of a layer by memory level, in total, and per multiply-accumulate.

    The energy of DRAM accesses does not take compression into account.
    """
    levels = {"mac": layer.num_macs * chip.energy.mac}
    levels |= {level: float(cost) for level, cost in words.energy(chip).items()}
    total = sum(levels.values())
    return LayerEnergy(**levels, total=total, per_mac=total / layer.num_macs)


def _total(rows: Sequence[LayerCost], chip: Chip) -> Cost:
    def summed(field: str) -> Any:
        return sum(getattr(row, field) for row in rows)

    macs, time_s, processing_s = summed("macs"), summed("time_s"), summed("processing_s")
    by_dataflow = None
    if all(row.energy_by_dataflow is not None for row in rows):
        by_layer = [row.energy_by_dataflow or {} for row in rows]
        by_name = {name: _summed([energies[name] for energies in by_layer], macs) for name in by_layer[0]}
        least = by_name[ROW_STATIONARY].total
        by_dataflow = {
            name: changed(energy, over_row_stationary=energy.total / least) for name, energy in by_name.items()
        }
    return Cost(
        macs=macs,
        cycles=summed("cycles"),
        processing_s=processing_s,
        dram_s=summed("dram_s"),
        time_s=time_s,
        utilisation=_utilisation(macs, time_s, chip),
        processing_utilisation=_utilisation(macs, processing_s, chip),
        accesses=_summed_accesses([row.accesses for row in rows]),
        buffer_traffic_bytes=summed("buffer_traffic_bytes"),
        dram_bytes=summed("dram_bytes"),
        dram_uncompressed_bytes=summed("dram_uncompressed_bytes"),
        energy=_summed([row.energy for row in rows], macs),
        gated=Gating(
            products=sum(row.gated.products for row in rows),
            energy_saved=sum(row.gated.energy_saved for row in rows),
        ),
        energy_by_dataflow=by_dataflow,
    )


def _summed_accesses(layers: Sequence[AccessCounts]) -> AccessCounts:
    def level(name: str) -> dict[str, int]:
        by_layer: list[dict[str, int]] = [getattr(counts, name) for counts in layers]
        return {kind: sum(counts[kind] for counts in by_layer) for kind in by_layer[0]}

    return AccessCounts(**{name: level(name) for name in LEVELS})


def _summed(energies: Sequence[LayerEnergy], macs: int) -> LayerEnergy:
    levels = {level: sum(getattr(energy, level) for energy in energies) for level in ("mac", *LEVELS)}
    total = sum(energy.total for energy in energies)
    return LayerEnergy(**levels, total=total, per_mac=total / macs)
