"""Memory that a step gave back stays with its process, for the next step.

C's allocator hands large blocks back to the system when they are freed. A training step frees its gradients and
activations and asks for the same again a moment later: the system then zeroes and maps every page once more, thousands
in every step. Whether that happens depends on which block lies last in a process's heap, so equal workers differ by a
quarter of a step, and a fast one becomes slow by the next run.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of mallopt's parameters
LARGEST_BLOCK = 32 << 20  # the largest that glibc keeps in the heap; what is larger is mapped by itself
LARGEST_REST = 2**31 - 1  # kept at the end of the heap
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES")


def keep_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell this process's allocator to keep what is freed; whether it was told.

    It is left alone where the environment has settings or an allocator of its own, and where C's library is not glibc.
    """
    if any(environment.get(name) for name in OWN_SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(TRIM_THRESHOLD, LARGEST_REST))


def give_back_memory() -> bool:
    """Hand what is kept but unused back to the system; whether there was any.

    Between two runs in one process: the next one's memory, and its peak, are its own.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))
