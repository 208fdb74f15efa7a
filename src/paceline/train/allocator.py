"""Settings of glibc's allocator: keep freed memory in the process for the next step.

By default glibc returns large freed blocks to the system. A training step frees its gradients and activations and
allocates the same sizes again a moment later, so the kernel zeroes and maps thousands of pages in every step. Whether
this happens depends on which block lies last in the heap: the step time of identical workers differs by up to a
quarter, and so does that of one worker between runs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameter numbers of mallopt
LARGEST_BLOCK = 32 << 20  # bytes of the largest block in the heap; larger ones are mapped separately
MOST_UNUSED = 2**31 - 1  # bytes at the end of the heap that are not returned to the system
ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES")


def keep_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory in this process, and return whether the allocator accepted the settings.

    Does nothing if the environment sets or replaces the allocator, or if the C library is not glibc.
    """
    if any(environment.get(name) for name in ALLOCATOR_VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(M_TRIM_THRESHOLD, MOST_UNUSED))


def give_back_memory() -> bool:
    """Release unused memory to the system, so that the next run has its own peak.

    Returns whether any memory was released.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))
