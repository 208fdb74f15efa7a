"""Settings of glibc's malloc for worker processes: keep freed memory in the process for the next training step.

By default glibc returns large freed blocks to the system. A training step frees its gradients and activations and
allocates the same sizes again a moment later, so the kernel may zero and map thousands of pages in every step. Whether
that happens depends on which block lies last in the heap. Without these settings, step times therefore differ by up to
a quarter between identical workers, and between runs of the same worker.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameter numbers of mallopt
LARGEST_BLOCK = 32 << 20  # bytes; malloc maps blocks of at least this size separately, outside the heap
MOST_UNUSED = 2**31 - 1  # bytes; up to this much free memory at the end of the heap is not returned to the system
ALLOCATOR_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "LD_PRELOAD", "GLIBC_TUNABLES")


def keep_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory in this process, and return whether the allocator accepted the settings.

    Does nothing and returns False if the C library has no mallopt, or if one of the ALLOCATOR_VARIABLES is set: these
    configure the allocator or may replace it.
    """
    if any(environment.get(name) for name in ALLOCATOR_VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_BLOCK)) and bool(mallopt(M_TRIM_THRESHOLD, MOST_UNUSED))


def give_back_memory() -> bool:
    """Release unused memory to the system, so that it does not count in the memory of the next task.

    Returns whether any memory was released.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return malloc_trim is not None and bool(malloc_trim(0))
