"""Adding and moving stretches of memory, each worker its own part."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from paceline.comm.shm_segment import LINE_BYTES

MOVE_BYTES = 64 << 10  # from here the C library's copy is the faster one


def add_up(rows: Tensor, into: Tensor) -> Tensor:
    """The sum of rows, in one pass over all of them; `into` is none of them."""
    if rows.dtype == torch.bool:
        return torch.any(rows, 0, out=into)
    torch.sum(rows, 0, dtype=rows.dtype, out=into)
    return into


def copy(target: Tensor, source: Tensor) -> None:
    """Long stretches by the C library, whose copy does not read first what it is about to overwrite."""
    nbytes = target.numel() * target.element_size()
    if nbytes < MOVE_BYTES or target.is_cuda or source.is_cuda:
        target.copy_(source)
    else:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)


def part_bounds(numel: int, world_size: int, itemsize: int) -> list[int]:
    """Where each worker's part of a vector begins, and where the last one ends: in whole cache lines."""
    per_line = max(LINE_BYTES // itemsize, 1)
    size = -(-numel // (world_size * per_line)) * per_line
    return [min(size * rank, numel) for rank in range(world_size + 1)]
