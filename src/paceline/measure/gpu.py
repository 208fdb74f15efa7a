"""Use of the GPU that a worker computes on; nothing where it computes on none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol


class Gpu(Protocol):
    """Reads a GPU."""

    def read(self) -> tuple[float | None, int | None]:
        """How busy the whole device is in percent, and the bytes on it that this process holds."""
        ...


class NoGpu:
    def read(self) -> tuple[float | None, int | None]:
        return None, None


class CudaGpu:
    """By torch, which finds the device that CUDA_VISIBLE_DEVICES means; how busy it is needs pynvml installed."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._can_tell_use = find_spec("pynvml") is not None

    def read(self) -> tuple[float | None, int | None]:
        use = float(self._cuda.utilization(self._device)) if self._can_tell_use else None
        return use, int(self._cuda.memory_reserved(self._device))


def open_gpu(device: Any) -> Gpu:
    """For a torch device; None and everything but CUDA have no figures."""
    return CudaGpu(device) if device is not None and device.type == "cuda" else NoGpu()
