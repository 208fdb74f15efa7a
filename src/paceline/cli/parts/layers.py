"""A network on a chip, as tables that fit a terminal of 100 columns."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from paceline.cli.parts.view import fitted
from paceline.dataflow.chips import Chip
from paceline.dataflow.layers import PUBLISHED, Layer
from paceline.dataflow.matrices import MAX_VALUES
from paceline.errors import UsageError

LEGEND = {
    "mapping": "mapping: m n e p q r t.",
    "PEs": "PEs: active, R x e x r x t.",
    "used": "used: MACs over PEs x time.",
    "zeros": "zeros: in what it reads.",
    "buffer MB": "buffer: between buffer and array.",
    "DRAM MB": "DRAM: with zeros compressed.",
    "energy/MAC": "energy: a MAC is 1, DRAM uncompressed.",
    "bound": "bound: what takes longest, products (compute), words to and from the array (buffer), or DRAM.",
}


def parse_sides(text: str) -> tuple[int, ...]:
    """`3x32x32` as numbers."""
    words = text.lower().split("x")
    sides = tuple(int(word) if re.fullmatch(r"\d{1,9}", word) else 0 for word in words)
    if 0 in sides or math.prod(sides) > MAX_VALUES:
        raise UsageError(f"--input-shape {text!r} is not sizes such as 3x32x32 (of {MAX_VALUES:,} values at most)")
    return sides


def read_network(
    name: str, chip: Chip, *, num_images: int, input_shape: tuple[int, ...] | None, with_linear: bool, runs: Path
) -> tuple[str, list[Layer]]:
    """What it is, and its layers. Published networks are there without torch; anything else is read with it."""
    if name in PUBLISHED:
        if input_shape is not None or with_linear:
            raise UsageError(f"{name} is its published convolutions: --input-shape and --linear are for models")
        return name, PUBLISHED[name](num_images)
    from paceline.dataflow.reading import read_layers

    return read_layers(name, chip, num_images=num_images, input_shape=input_shape, with_linear=with_linear, runs=runs)


def print_network(result: dict[str, Any], console: Console) -> None:
    console.print(f"{result['network']}, batch {result['batch']}, on {result['chip_description']}", markup=False)
    with_zeros = any(row["input_zeros"] for row in result["layers"])
    rows = [_cells(row, with_zeros=with_zeros) for row in result["layers"]]
    if len(rows) > 1:
        rows.append(_total_cells(result["total"], with_zeros=with_zeros))
    dispensable = ("MACs", "zeros", "DRAM MB", "buffer MB")
    table = fitted(rows, console.width, dispensable=dispensable, text=("bound",))
    console.print(table)
    for line in _explanation(result, [str(column.header) for column in table.columns]):
        console.print(line, markup=False)
    console.print("Cycles without waiting for DRAM, and accesses at each level in millions of words:")
    console.print(fitted(_access_rows(result), console.width))
    if "energy_by_dataflow" in result["total"]:
        console.print(fitted(_dataflow_rows(result), console.width, dispensable=("MAC", "registers"), name_share=0.3))


def _cells(row: dict[str, Any], *, with_zeros: bool) -> dict[str, str]:
    return {
        "layer": escape(row["name"]),
        "mapping": " ".join(str(value) for value in row["mapping"].values()),
        "PEs": str(row["active_pes"]),
        "used": f"{row['utilisation']:.0%}",
        **({"zeros": f"{row['input_zeros']:.0%}"} if with_zeros else {}),
        **_figures(row),
        "bound": row["bound"],
    }


def _total_cells(total: dict[str, Any], *, with_zeros: bool) -> dict[str, str]:
    return {
        "layer": "all",
        "mapping": "",
        "PEs": "",
        "used": f"{total['utilisation']:.0%}",
        **({"zeros": ""} if with_zeros else {}),
        **_figures(total),
        "bound": "",
    }


def _figures(row: dict[str, Any]) -> dict[str, str]:
    return {
        "MACs": f"{_readable(row['macs'] / 1e6, 0)} M",
        "ms": _readable(1e3 * row["time_s"], 2),
        "buffer MB": _readable(row["buffer_traffic_bytes"] / 1e6, 1),
        "DRAM MB": _readable(row["dram_bytes"] / 1e6, 2),
        "energy/MAC": f"{row['energy']['per_mac']:.2f}",
    }


def _readable(value: float, decimals: int) -> str:
    """With as many decimals more as a small value needs for two digits."""
    while decimals < 6 and 0 < value < 10 ** (1 - decimals):
        decimals += 1
    return f"{value:,.{decimals}f}"


def _explanation(result: dict[str, Any], columns: Sequence[str]) -> list[str]:
    """What the columns mean that the table has room for."""
    said = [words for column, words in LEGEND.items() if column in columns]
    return [" ".join(said), f"Mappings chosen by {result['objective']}.", *_zeros(result)]


def _access_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    heads = {"registers": "register_file", "neighbours": "neighbour", "buffer": "buffer", "DRAM": "dram"}
    total = [{"name": "all", **result["total"]}] if len(result["layers"]) > 1 else []
    return [
        {
            "layer": escape(row["name"]),
            "cycles": f"{row['cycles']:,}",
            **{head: _readable(sum(row["accesses"][level].values()) / 1e6, 2) for head, level in heads.items()},
        }
        for row in [*result["layers"], *total]
    ]


def _zeros(result: dict[str, Any]) -> list[str]:
    """What zeros save, where they were counted on real values."""
    if not all(row["is_counted"] for row in result["layers"]):
        return []
    total, rows = result["total"], result["layers"]
    gated, plain = total["gated"], total["dram_uncompressed_bytes"]
    lines = [
        f"Zeros counted on test images: {gated['products'] / total['macs']:.0%} of the products are gated, which saves "
        f"{gated['energy_saved'] / total['energy']['total']:.0%} of the energy; DRAM carries "
        f"{total['dram_bytes'] / plain:.0%} of {plain / 1e6:.2f} MB."
    ]
    if all(row["filter_zeros"] is not None for row in rows):
        zeros = sum(row["filter_zeros"] * _num_weights(row["shape"]) for row in rows)
        share = zeros / sum(_num_weights(row["shape"]) for row in rows)
        bits = result["word_bits"]
        lines.append(
            f"In integers alone: int8 weights, {share:.1%} of them zero; words are the chip's, {bits} bits wide."
        )
    return lines


def _num_weights(shape: dict[str, Any]) -> int:
    sides = ("num_filters", "num_channels", "kernel_height", "kernel_width", "num_groups")
    return math.prod(int(shape[side]) for side in sides)


def _dataflow_rows(result: dict[str, Any]) -> list[dict[str, str]]:
    """Energy of every dataflow by level, over all layers."""
    macs = result["total"]["macs"]
    heads = {"MAC": "mac", "registers": "register_file", "neighbour": "neighbour", "buffer": "buffer", "DRAM": "dram"}
    return [
        {
            "energy per MAC": name,
            **{head: f"{energy[level] / macs:.2f}" for head, level in heads.items()},
            "in all": f"{energy['per_mac']:.2f}",
            "times": f"{energy['over_row_stationary']:.2f}x",
        }
        for name, energy in result["total"]["energy_by_dataflow"].items()
    ]
