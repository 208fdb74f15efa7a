"""Memory, files and CPU time of this process, as its kernel counts them.

Use of the GPU that a worker computes on; nothing where it computes on none."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

_FORGET_PEAK = b"5"  # what /proc/self/clear_refs takes for: the peak is what is in use now


@dataclass(frozen=True)
class Usage:
    """One reading; bytes of files count from the process's start. None: this system does not say."""

    cpu_s: float  # of all threads
    at_s: float  # when that was read, on the clock of `time.perf_counter`
    rss_bytes: int
    peak_rss_bytes: int  # since the meter was opened
    disk_read_bytes: int | None = None
    block_written_bytes: int | None = None  # pages that a block device is to hold; a file in tmpfs has none
    write_calls_bytes: int | None = None  # everything handed to write(): files of any kind, pipes, sockets


class Meter(ABC):
    """Reads this process's usage."""

    def read(self) -> Usage:
        # Both clocks at once: whatever else is read takes its time, in which other threads go on.
        return self._read(time.process_time(), time.perf_counter())

    @abstractmethod
    def _read(self, cpu_s: float, at_s: float) -> Usage: ...

    def close(self) -> None: ...


def open_meter() -> Meter:
    """The best that this system offers. The peak of memory counts from here."""
    return LinuxMeter() if sys.platform.startswith("linux") else PortableMeter()


class LinuxMeter(Meter):
    """From /proc, through files that stay open: reading again costs a third of opening again."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._io = _open_if_there("/proc/self/io")
        self._peak = 0
        self._is_peak_of_run = _forget_peak()

    def _read(self, cpu_s: float, at_s: float) -> Usage:
        kibibytes = numbers_of(os.pread(self._status, 8192, 0), (b"VmHWM", b"VmRSS"))
        rss = kibibytes[b"VmRSS"] * 1024
        # A kernel that cannot forget knows the peak of all the process's life: then the largest that was seen must do.
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
    """From psutil, where it knows."""

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
    """The first number behind each name, in text of lines `name: number ...`."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if name in names:
            found[name] = int(rest.split()[0])
    return found


def _open_if_there(path: str) -> int | None:
    """Some sandboxes and kernels built without task accounting hide the file."""
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
