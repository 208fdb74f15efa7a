"""Mapping search: evaluate every mapping that fits the chip and choose the best by an objective."""

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
    """Cycles on the chip; DRAM time is excluded because it depends on the data."""
    return total_cycles(cycles(shape, mapping, chip))


# The chosen mapping minimises one of these. None depends on the data: zeros are not known in advance.
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
    """Return the best mapping of a group of a layer; raise UsageError if none fits."""
    check_objective(objective)
    try:
        return best_mapping(shape, chip, objective)
    except _Unmappable as problem:
        raise UsageError(f"layer {name} cannot be mapped onto {chip.name}: {problem}") from None


class _Unmappable(Exception):
    """No mapping fits; the message names the resource that is too small."""


@lru_cache(maxsize=256)
def best_mapping(shape: Shape, chip: Chip, objective: str) -> Mapping:
    """Return the mapping that minimises the objective; ties are broken by energy."""
    candidates = _candidates(shape, chip)
    order = np.lexsort((_energy(shape, candidates, chip), OBJECTIVES[objective](shape, candidates, chip)))
    return Mapping(**{key: int(values[order[0]]) for key, values in vars(candidates).items()})


def _candidates(shape: Shape, chip: Chip) -> Mapping:
    """Return all mappings that fit, as arrays; raise if there is none."""
    _check_single(shape, chip)
    in_pe = np.array(list(_in_pe(shape, chip)), dtype=np.int64)
    in_space = np.array(list(_sets(shape, chip)), dtype=np.int64)
    images = np.array(divided(shape.num_images, shape.num_images), dtype=np.int64)
    choices = np.indices((len(in_pe), len(in_space), len(images))).reshape(3, -1)
    (p, q), (e, r, t), n = in_pe[choices[0]].T, in_space[choices[1]].T, images[choices[2]]
    found = Mapping(m=np.minimum(p * t, shape.num_filters), n=n, e=e, p=p, q=q, r=r, t=t)
    # Sets that share filters or channels get at least one and no more than their share.
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
    """The largest number of filters that fits the buffer, all or in whole passes: more filters have no other cost."""
    per_filter = mapping.n * mapping.e * shape.output_width * chip.word_bytes
    free = (chip.buffer.banks - input_banks(shape, mapping, chip)) * chip.buffer.bank_bytes
    per_pass = mapping.p * mapping.t
    most = np.minimum(free // per_filter, shape.num_filters).astype(np.int64)
    return np.where(most == shape.num_filters, most, most // per_pass * per_pass)


def _check_single(shape: Shape, chip: Chip) -> None:
    """Raise if the kernel exceeds the rows of the array or the scratch pads of a PE, which no mapping can change."""
    pads = chip.scratch_pads
    problem = ""
    if shape.kernel_height > chip.rows:
        problem = f"its {shape.kernel_height} filter rows need as many rows of PEs, but the chip has {chip.rows}"
    elif shape.kernel_width > pads.input:
        problem = f"a row of {shape.kernel_width} weights needs as many words for inputs, but a PE has {pads.input}"
    elif shape.kernel_width > pads.filter:
        problem = f"a row of {shape.kernel_width} weights does not fit into a PE's {pads.filter} words"
    if problem:
        raise _Unmappable(problem)


def _in_pe(shape: Shape, chip: Chip) -> Iterator[tuple[int, int]]:
    """Yield numbers of filters and channels that fit into the scratch pads of a PE."""
    pads = chip.scratch_pads
    for p in divided(shape.num_filters, pads.partial_sum):
        for q in divided(shape.num_channels, pads.input // shape.kernel_width):
            if p * q * shape.kernel_width <= pads.filter:
                yield p, q


def _sets(shape: Shape, chip: Chip) -> Iterator[tuple[int, int, int]]:
    """Yield output rows per set, sets on different channels and sets on different filters that fit the array.

    A set wider than the array is split into pieces placed below each other.
    """
    down = chip.rows // shape.kernel_height
    for e in divided(shape.output_height, shape.output_height):
        room = down * (chip.columns // e) if e <= chip.columns else down // math.ceil(e / chip.columns)
        for r in divided(shape.num_channels, room):
            for t in divided(shape.num_filters, room // r):
                yield e, r, t


def divided(whole: int, most: int) -> list[int]:
    """Return the smallest part sizes, up to `most`, that divide a whole into 1, 2, 3, ... rounds."""
    found = []
    part = min(whole, most)
    while part:
        part = ceiling(whole, ceiling(whole, part))  # the smallest that needs as few rounds
        found.append(part)
        part -= 1
    return found[::-1]
