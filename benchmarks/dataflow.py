"""The accelerator against its published figures, and the speed of the simulation.

    python benchmarks/dataflow.py

Prints AlexNet on the Eyeriss chip with the published figures, the effect of the assumed widths of the on-chip network
and of other objectives, energy under other dataflows, and the speed of counting and of simulating values.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.dataflow.baselines import best_accesses
from paceline.dataflow.chips import Chip, load_chip
from paceline.dataflow.layers import alexnet
from paceline.dataflow.matrices import make_operands
from paceline.dataflow.network_cost import analyse
from paceline.dataflow.row_stationary import OBJECTIVES, Mapping, accesses, best_mapping, cycles, total_cycles
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import MODELS, Timing

# Eyeriss (JSSC 2017), batch 4: processing ms, active PEs, global buffer MB, DRAM MB.
PUBLISHED = {
    "CONV1": (16.5, 154, 18.5, 5.0),
    "CONV2": (39.2, 135, 77.6, 4.0),
    "CONV3": (21.8, 156, 50.2, 3.0),
    "CONV4": (16.0, 156, 37.4, 2.1),
    "CONV5": (10.0, 156, 24.9, 1.3),
}
# The same paper's mappings: m n e p q r t.
MAPPINGS = {
    "CONV1": (96, 1, 7, 16, 1, 1, 2),
    "CONV2": (64, 1, 27, 16, 2, 1, 1),
    "CONV3": (64, 4, 13, 16, 4, 1, 4),
    "CONV4": (64, 4, 13, 16, 3, 2, 2),
    "CONV5": (64, 4, 13, 16, 3, 2, 2),
}
PUBLISHED_ENERGY = "1.4 to 2.5"
# Constraints on the array of a dataflow: blocks of filters and channels, or of filters, rows and columns.
CONFINED: dict[str, tuple[str, Callable[..., bool]]] = {
    "one channel at a time": ("weight-stationary", lambda _filters, channels: channels == 1),
    "one filter at a time": ("weight-stationary", lambda filters, _channels: filters == 1),
    "one plane of weights": ("weight-stationary", lambda filters, channels: filters == channels == 1),
    "outputs of one filter": ("output-stationary", lambda filters, *_: filters == 1),
    "one pixel of all filters": ("output-stationary", lambda _filters, rows, columns: rows == columns == 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=56, help="side of the images whose values are simulated")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    chip = load_chip("eyeriss")
    show_table(analyse(alexnet(4), chip))
    show_published_mappings(chip)
    show_widths(chip)
    show_objectives(chip)
    show_energy(analyse(alexnet(4), chip), chip)
    show_speed(chip, side=arguments.side, repeats=arguments.repeats)


def show_table(result: dict[str, Any]) -> None:
    print("AlexNet, batch 4, on Eyeriss: ours / published")
    print("layer  mapping (m n e p q r t)   PEs       processing ms           buffer MB               DRAM MB")
    for row in result["layers"]:
        time_ms, active, *moved = PUBLISHED[row["name"]]
        cells = (beside(own, theirs) for own, theirs in zip(figures(row), (time_ms, *moved), strict=True))
        mapping = " ".join(str(value) for value in row["mapping"].values())
        print(f"{row['name']}  {mapping:<24}  {row['active_pes']}/{active}   {'   '.join(cells)}")
    print(f"processing time: mean of absolute differences {mean_absolute(differences(result['layers'])[0]):.1%}\n")


def show_published_mappings(chip: Chip) -> None:
    print("the published mappings, by the same closed forms: ours / published")
    for layer in alexnet(4):
        mapping = Mapping(**dict(zip("mnepqrt", MAPPINGS[layer.name], strict=True)))
        moved = accesses(layer.shape, mapping).times(layer.num_groups)
        took = float(total_cycles(cycles(layer.shape, mapping, chip))) * layer.num_groups / chip.clock_hz
        buffered = (moved.buffer["input"] + moved.buffer["partial_sum"]) * chip.word_bytes / 1e6
        published = PUBLISHED[layer.name]
        text = " ".join(map(str, MAPPINGS[layer.name]))
        print(f"{layer.name}  {text:<24}  {beside(1e3 * took, published[0])} ms   {beside(buffered, published[2])} MB")
    print()


def beside(ours: float, published: float) -> str:
    return f"{ours:6.2f} / {published:5.1f} {ours / published - 1:+6.1%}"


def mean_absolute(errors: Sequence[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def show_widths(chip: Chip) -> None:
    """Vary the widths of the on-chip network, which are not in the published table."""
    print("mean absolute difference of processing time, by words per cycle on the network for filters and inputs")
    for filters in (1, 2, 4, 8):
        cells = []
        for inputs in (1, 2, 4):
            other = replace(chip, network=replace(chip.network, filter=filters, input=inputs))
            rows = analyse(alexnet(4), other, with_baselines=False)["layers"]
            cells.append(f"inputs {inputs}: {mean_absolute(differences(rows)[0]):6.1%}")
        print(f"  filters {filters}:  {'   '.join(cells)}")
    print()


def figures(row: dict[str, Any]) -> tuple[float, float, float]:
    """Return processing ms, buffer MB and DRAM MB of a layer."""
    return 1e3 * row["processing_s"], row["buffer_traffic_bytes"] / 1e6, row["dram_bytes"] / 1e6


def differences(rows: Sequence[dict[str, Any]]) -> list[list[float]]:
    """Return relative differences from the published time, buffer and DRAM figures: three lists over layers."""
    beside_each = [(figures(row), PUBLISHED[row["name"]]) for row in rows]
    parts = [
        [ours / theirs - 1 for ours, theirs in zip(own, (time_ms, *moved), strict=True)]
        for own, (time_ms, _, *moved) in beside_each
    ]
    return [list(part) for part in zip(*parts, strict=True)]


def show_objectives(chip: Chip) -> None:
    print("by objective: active PEs; time, mean difference; buffer and DRAM, largest difference; energy per MAC")
    for objective in OBJECTIVES:
        result = analyse(alexnet(4), chip, objective=objective, with_baselines=False)
        active = " ".join(str(row["active_pes"]) for row in result["layers"])
        took, *moved = differences(result["layers"])
        largest = "  ".join(f"{max(part, key=abs):+6.1%}" for part in moved)
        energy = result["total"]["energy"]["per_mac"]
        print(f"  {objective:<13} {active:<20} {mean_absolute(took):6.1%}  {largest}  {energy:.2f}")
    print()


def show_energy(result: dict[str, Any], chip: Chip) -> None:
    print(f"energy per MAC in the five layers, and times row-stationary (published: {PUBLISHED_ENERGY})")
    for name, energy in result["total"]["energy_by_dataflow"].items():
        print(f"  {name:<18} {energy['per_mac']:6.2f}   {energy['over_row_stationary']:.2f}")
    print("  with constraints on the array:")
    for label, (name, allowed) in CONFINED.items():
        energy = confined_energy(name, chip, allowed)
        times = energy / result["total"]["energy"]["per_mac"]
        print(f"  {name}, {label:<{46 - len(name)}} {energy:6.2f}   {times:.2f}")
    print()


def confined_energy(name: str, chip: Chip, allowed: Callable[..., bool]) -> float:
    """Return the energy per MAC of a dataflow over the five layers."""
    layers = alexnet(4)
    moved = [best_accesses(name, layer.shape, chip, allowed).times(layer.num_groups) for layer in layers]
    macs = sum(layer.num_macs for layer in layers)
    return chip.energy.mac + sum(sum(one.energy(chip).values()) for one in moved) / macs


def show_speed(chip: Chip, *, side: int, repeats: int) -> None:
    counting = []
    for _ in range(repeats):
        best_mapping.cache_clear()
        started = time.perf_counter()
        analyse(alexnet(4), chip, with_baselines=False)
        counting.append(time.perf_counter() - started)
    print(f"counts of AlexNet's five layers: {sorted(counting)[repeats // 2]:.3f} s, median of {repeats}")
    random = np.random.default_rng(0)
    images, filters = random.normal(size=(1, 16, side, side)), random.normal(size=(16, 16, 3, 3))
    operands = make_operands(images, filters, padding=(1, 1))
    macs = operands.shape.num_multiplications
    for model in MODELS:
        elapsed = []
        for _ in range(repeats):
            simulation = Simulation.of(operands, Timing(model=model), (chip.rows, chip.columns))
            started = time.perf_counter()
            simulation.output, simulation.cycles  # noqa: B018
            elapsed.append(time.perf_counter() - started)
        middle = sorted(elapsed)[repeats // 2]
        print(f"values, {model:<10} {macs / 1e6:.1f} M MACs in {middle:.3f} s: {macs / middle / 1e6:.1f} M MACs/s")


if __name__ == "__main__":
    main()
