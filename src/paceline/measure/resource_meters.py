"""Meters of this process: CPU time, memory and file bytes from the kernel, and use of its GPU."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

_FORGET_PEAK = b"5"  # value for /proc/self/clear_refs that resets the peak


@dataclass(frozen=True)
class Usage:
    """One reading. File bytes count from the start of the process; None if the system does not report them."""

    cpu_s: float  # of all threads
    at_s: float  # time of the reading, by `time.perf_counter`
    rss_bytes: int
    peak_rss_bytes: int  # since the meter was opened
    disk_read_bytes: int | None = None
    block_written_bytes: int | None = None  # pages written to block devices; files in tmpfs have none
    write_calls_bytes: int | None = None  # bytes passed to write(): any file, pipe or socket


class Meter(ABC):
    """Reads this process's usage."""

    def read(self) -> Usage:
        # Read both clocks together: the other readings take time in which other threads continue.
        return self._read(time.process_time(), time.perf_counter())

    @abstractmethod
    def _read(self, cpu_s: float, at_s: float) -> Usage: ...

    def close(self) -> None: ...


def open_meter() -> Meter:
    """Return the meter for this system. The peak of memory counts from this call."""
    return LinuxMeter() if sys.platform.startswith("linux") else PortableMeter()


class LinuxMeter(Meter):
    """Meter that reads /proc. Files stay open: reading again takes a third of the time of reopening."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._io = _open_if_there("/proc/self/io")
        self._peak = 0
        self._is_peak_of_run = _forget_peak()

    def _read(self, cpu_s: float, at_s: float) -> Usage:
        kibibytes = numbers_of(os.pread(self._status, 8192, 0), (b"VmHWM", b"VmRSS"))
        rss = kibibytes[b"VmRSS"] * 1024
        # If the kernel cannot reset the peak, VmHWM covers the whole process: use the largest reading instead.
        self._peak = max(self._peak, kibibytes[b"VmHWM"] * 1024 if self._is_peak_of_run else rss)
        if self._io is None:
            return Usage(cpu_s, at_s, rss, self._peak)
        counts = numbers_of(os.pread(self._io, 1024, 0), (b"wchar", b"read_bytes", b"write_bytes"))
        return Usage(cpu_s, at_s, rss, self._peak, counts[b"read_bytes"], counts[b"write_bytes"], counts[b"wchar"])

    def close(self) -> None:
        for fd in (self._status, self._io):
            if fd is not None:
                os.close(fd)


class PortableMeter(Meter):
    """Meter that reads psutil, for systems without /proc."""

    def __init__(self) -> None:
        import psutil

        self._process: Any = psutil.Process()
        self._peak = 0

    def _read(self, cpu_s: float, at_s: float) -> Usage:
        rss = int(self._process.memory_info().rss)
        self._peak = max(self._peak, rss)
        if not hasattr(self._process, "io_counters"):  # macOS
            return Usage(cpu_s, at_s, rss, self._peak)
        counts = self._process.io_counters()
        return Usage(cpu_s, at_s, rss, self._peak, int(counts.read_bytes), int(counts.write_bytes))


def numbers_of(text: bytes, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return the first number after each name, from lines `name: number ...`."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if name in names:
            found[name] = int(rest.split()[0])
    return found


def _open_if_there(path: str) -> int | None:
    """Open a file for reading; None in sandboxes and kernels that lack it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.pread(fd, 1, 0)
    except OSError:
        os.close(fd)
        return None
    return fd


def _forget_peak() -> bool:
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(_FORGET_PEAK)
    except OSError:
        return False
    return True


class Gpu(Protocol):
    """Reads a GPU."""

    def read(self) -> tuple[float | None, int | None]:
        """Return the utilisation of the device in percent and the bytes that this process reserves on it."""
        ...


class NoGpu:
    def read(self) -> tuple[float | None, int | None]:
        return None, None


class CudaGpu:
    """Reads a CUDA device through torch; utilisation needs pynvml."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._has_pynvml = find_spec("pynvml") is not None

    def read(self) -> tuple[float | None, int | None]:
        use = float(self._cuda.utilization(self._device)) if self._has_pynvml else None
        return use, int(self._cuda.memory_reserved(self._device))


def open_gpu(device: Any) -> Gpu:
    """Return the reader for a torch device; without CUDA its values are None."""
    return CudaGpu(device) if device is not None and device.type == "cuda" else NoGpu()
