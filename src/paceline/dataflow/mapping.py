"""Choosing a mapping: every one that the chip can hold is weighed by an objective, and the least wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from paceline.dataflow.chips import Chip
from paceline.dataflow.row_stationary import (
    Mapping,
    accesses,
    buffer_banks,
    cycles,
    filter_bytes,
    input_banks,
    total_cycles,
)
from paceline.dataflow.shape import Amount, Shape, ceiling
from paceline.errors import UsageError, unknown

DEFAULT_OBJECTIVE = "dram-delay"


def _dram(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:  # noqa: ARG001
    return accesses(shape, mapping).total("dram")


def _energy(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    return sum(accesses(shape, mapping).energy(chip).values()) + shape.num_multiplications * chip.energy.mac


def _time(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """On the chip: how long DRAM takes hangs on zeros."""
    return total_cycles(cycles(shape, mapping, chip))


# What is least in the mapping that is taken. None of them looks at the data: zeros are not known beforehand.
OBJECTIVES: dict[str, Callable[[Shape, Mapping, Chip], Amount]] = {
    "dram-delay": lambda *given: _dram(*given) * _time(*given),
    "energy-delay": lambda *given: _energy(*given) * _time(*given),
    "energy": _energy,
    "time": _time,
}


def check_objective(name: str) -> None:
    if name not in OBJECTIVES:
        raise unknown("objective", name, OBJECTIVES)


def choose_mapping(name: str, shape: Shape, chip: Chip, objective: str = DEFAULT_OBJECTIVE) -> Mapping:
    """The best mapping of a layer's group; where there is none, an error that names the layer."""
    check_objective(objective)
    try:
        return best_mapping(shape, chip, objective)
    except _Unmappable as problem:
        raise UsageError(f"layer {name} cannot be mapped onto {chip.name}: {problem}") from None


class _Unmappable(Exception):
    """What a chip has too little of."""


@lru_cache(maxsize=256)
def best_mapping(shape: Shape, chip: Chip, objective: str) -> Mapping:
    """The least by the objective; among equals, the one of least energy. Layers of one shape share it."""
    candidates = _candidates(shape, chip)
    order = np.lexsort((_energy(shape, candidates, chip), OBJECTIVES[objective](shape, candidates, chip)))
    return Mapping(**{key: int(values[order[0]]) for key, values in vars(candidates).items()})


def _candidates(shape: Shape, chip: Chip) -> Mapping:
    """All mappings that fit, as arrays; an error that says what does not fit where there is none."""
    _check_single(shape, chip)
    in_pe = np.array(list(_in_pe(shape, chip)), dtype=np.int64)
    in_space = np.array(list(_sets(shape, chip)), dtype=np.int64)
    images = np.array(divided(shape.num_images, shape.num_images), dtype=np.int64)
    choices = np.indices((len(in_pe), len(in_space), len(images))).reshape(3, -1)
    (p, q), (e, r, t), n = in_pe[choices[0]].T, in_space[choices[1]].T, images[choices[2]]
    found = Mapping(m=np.minimum(p * t, shape.num_filters), n=n, e=e, p=p, q=q, r=r, t=t)
    # Sets that share filters or channels each have some, and no more than their share.
    fits = (p <= ceiling(shape.num_filters, t)) & (q <= ceiling(shape.num_channels, r))
    fits &= filter_bytes(shape, found, chip) <= chip.buffer.filter_bytes
    fits &= buffer_banks(shape, found, chip) <= chip.buffer.banks
    if not fits.any():
        raise _Unmappable(
            "even the smallest strip of its output leaves no room for inputs and partial sums in the buffer's "
            f"{chip.buffer.banks} banks of {chip.buffer.bank_bytes} bytes"
        )
    found = Mapping(**{key: values[fits] for key, values in vars(found).items()})
    return replace(found, m=_most_filters(shape, found, chip))


def _most_filters(shape: Shape, mapping: Mapping, chip: Chip) -> Amount:
    """As many filters at a time as the buffer has room for, all or in whole passes: more of them cost nothing else."""
    per_filter = mapping.n * mapping.e * shape.output_width * chip.word_bytes
    free = (chip.buffer.banks - input_banks(shape, mapping, chip)) * chip.buffer.bank_bytes
    per_pass = mapping.p * mapping.t
    most = np.minimum(free // per_filter, shape.num_filters).astype(np.int64)
    return np.where(most == shape.num_filters, most, most // per_pass * per_pass)


def _check_single(shape: Shape, chip: Chip) -> None:
    """What one row of PEs, or one PE, must be able to hold whatever the mapping."""
    pads = chip.scratch_pads
    problem = ""
    if shape.kernel_height > chip.rows:
        problem = f"its {shape.kernel_height} filter rows need as many rows of PEs, and there are {chip.rows}"
    elif shape.kernel_width > pads.input:
        problem = f"a row of {shape.kernel_width} weights needs as many words for inputs, and a PE has {pads.input}"
    elif shape.kernel_width > pads.filter:
        problem = f"a row of {shape.kernel_width} weights does not fit into a PE's {pads.filter} words"
    if problem:
        raise _Unmappable(problem)


def _in_pe(shape: Shape, chip: Chip) -> Iterator[tuple[int, int]]:
    """Filters and channels that the scratch pads of a PE have room for."""
    pads = chip.scratch_pads
    for p in divided(shape.num_filters, pads.partial_sum):
        for q in divided(shape.num_channels, pads.input // shape.kernel_width):
            if p * q * shape.kernel_width <= pads.filter:
                yield p, q


def _sets(shape: Shape, chip: Chip) -> Iterator[tuple[int, int, int]]:
    """Output rows per set, sets on different channels, sets on different filters: all that the array has room for.

    A set that is wider than the array is laid out in pieces below each other.
    """
    down = chip.rows // shape.kernel_height
    for e in divided(shape.output_height, shape.output_height):
        room = down * (chip.columns // e) if e <= chip.columns else down // math.ceil(e / chip.columns)
        for r in divided(shape.num_channels, room):
            for t in divided(shape.num_filters, room // r):
                yield e, r, t


def divided(whole: int, most: int) -> list[int]:
    """The smallest parts, up to a size, that divide a whole into 1, 2, 3, ... rounds: larger ones save no round.

    (Uneven strips could save a few words where padding is deep, as the shorter one then has more of it.)
    """
    found = []
    part = min(whole, most)
    while part:
        part = ceiling(whole, ceiling(whole, part))  # the smallest that needs as few rounds
        found.append(part)
        part -= 1
    return found[::-1]
