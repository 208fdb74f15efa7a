"""Read the resource usage of a worker process: CPU, memory, file and network bytes, and GPU."""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from paceline.measure.network_counters import Connections, Traffic, interface_bytes, is_in_own_namespace
from paceline.results import Json

LEAST_PERIOD_S = 0.02  # shortest period for a CPU percentage; below it, the last value is repeated
_RESET_PEAK = b"5"  # value for /proc/self/clear_refs that resets the peak


@dataclass(frozen=True)
class Usage:
    """CPU, memory and file usage of this process at one time.

    File bytes are counted since the start of the process. They are None if the system does not report them.
    """

    cpu_s: float  # of all threads
    at_s: float  # time of the reading, by `time.perf_counter`
    rss_bytes: int
    peak_rss_bytes: int  # since the `UsageReader` was opened
    disk_read_bytes: int | None = None
    block_written_bytes: int | None = None  # written to block devices, so without files in tmpfs
    write_calls_bytes: int | None = None  # bytes passed to write(): any file, pipe or socket


class UsageReader(ABC):
    """Reads the CPU, memory and file usage of this process."""

    def read(self) -> Usage:
        # Read both clocks together, before the slower readings of `_read`, because other threads continue meanwhile.
        return self._read(time.process_time(), time.perf_counter())

    @abstractmethod
    def _read(self, cpu_s: float, at_s: float) -> Usage: ...

    def close(self) -> None: ...


def open_usage_reader() -> UsageReader:
    """Return the usage reader for this system. The reader reports the memory peak since this call."""
    return LinuxUsageReader() if sys.platform.startswith("linux") else PortableUsageReader()


class LinuxUsageReader(UsageReader):
    """Reads usage from files in /proc.

    The files stay open, because opening them for each reading would take three times as long.
    """

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._io = _open_if_readable("/proc/self/io")
        self._peak = 0
        self._is_peak_of_run = _reset_peak()

    def _read(self, cpu_s: float, at_s: float) -> Usage:
        kibibytes = numbers_of(os.pread(self._status, 8192, 0), (b"VmHWM", b"VmRSS"))
        rss = kibibytes[b"VmRSS"] * 1024
        # If the kernel cannot reset the peak, VmHWM also covers the time before: use the largest reading of VmRSS.
        self._peak = max(self._peak, kibibytes[b"VmHWM"] * 1024 if self._is_peak_of_run else rss)
        if self._io is None:
            return Usage(cpu_s, at_s, rss, self._peak)
        counts = numbers_of(os.pread(self._io, 1024, 0), (b"wchar", b"read_bytes", b"write_bytes"))
        return Usage(cpu_s, at_s, rss, self._peak, counts[b"read_bytes"], counts[b"write_bytes"], counts[b"wchar"])

    def close(self) -> None:
        for fd in (self._status, self._io):
            if fd is not None:
                os.close(fd)


class PortableUsageReader(UsageReader):
    """Reads usage through psutil, for systems without /proc."""

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
    """Return the first number after each of `names`, from a text with lines `name: number ...`."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(b":")
        if name in names:
            found[name] = int(rest.split()[0])
    return found


def _open_if_readable(path: str) -> int | None:
    """Open a file for reading, or return None if it is missing or reading is forbidden."""
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


def _reset_peak() -> bool:
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(_RESET_PEAK)
    except OSError:
        return False
    return True


class CudaGpu:
    """Reads the usage of a CUDA device; utilisation is None if pynvml is not installed."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._device = device
        self._has_pynvml = find_spec("pynvml") is not None

    def read(self) -> tuple[float | None, int]:
        """Return the device's utilisation in percent, and how many bytes of its memory torch has reserved."""
        use = float(self._cuda.utilization(self._device)) if self._has_pynvml else None
        return use, int(self._cuda.memory_reserved(self._device))


def open_gpu(device: Any) -> CudaGpu | None:
    """Return a usage reader for a torch device, or None if `device` is None or not a CUDA device."""
    return CudaGpu(device) if device is not None and device.type == "cuda" else None


class ResourceProbe:
    """Reads all resource usage of a worker, as the fields of a `sample` line in the worker's file.

    File and network bytes are counted since the probe was created.
    """

    def __init__(self, device: Any = None) -> None:
        self._gpu = open_gpu(device)
        self._connections = Connections.open()
        self._has_interfaces = is_in_own_namespace()
        self._reader = open_usage_reader()
        self._written = 0
        self._first = self._reader.read()
        self._first_traffic = self._connections.read() if self._connections else None
        self._first_interfaces = interface_bytes() if self._has_interfaces else (0, 0)
        self._last_at, self._last_cpu_s = self._first.at_s, self._first.cpu_s
        self._percent: float | None = None

    def read(self) -> Json:
        # Read files before the network: bytes sent in between can then lower the file bytes, but never raise them.
        usage = self._reader.read()
        traffic = None
        if self._connections is not None and self._first_traffic is not None:
            traffic = self._connections.read().since(self._first_traffic)
        gpu_percent, gpu_memory_bytes = self._gpu.read() if self._gpu else (None, None)
        return {
            "cpu_percent": self._cpu_percent(usage.cpu_s, usage.at_s),
            "rss_bytes": usage.rss_bytes,
            "peak_rss_bytes": usage.peak_rss_bytes,
            **self._files(usage, traffic),
            "network_sent_bytes": traffic.sent_bytes if traffic else None,
            "network_received_bytes": traffic.received_bytes if traffic else None,
            "network_retransmitted_bytes": traffic.retransmitted_bytes if traffic else None,
            "network_header_bytes": traffic.header_bytes if traffic else None,
            **self._node(),
            "gpu_percent": gpu_percent,
            "gpu_memory_bytes": gpu_memory_bytes,
        }

    def unsent_bytes(self) -> int:
        """Return how many bytes written to TCP connections are not sent yet, or 0 if the kernel does not count them."""
        return self._connections.read().unsent_bytes if self._connections else 0

    def close(self) -> None:
        self._reader.close()

    def _cpu_percent(self, cpu_s: float, now: float) -> float | None:
        if now - self._last_at >= LEAST_PERIOD_S:
            self._percent = round(100 * (cpu_s - self._last_cpu_s) / (now - self._last_at), 2)
            self._last_at, self._last_cpu_s = now, cpu_s
        return self._percent

    def _files(self, usage: Usage, traffic: Traffic | None) -> Json:
        """Return the bytes read from and written to files since the probe was created.

        `disk_written_bytes` is the larger of two counts, and never decreases. The first counts the bytes written to
        block devices, so it excludes files in tmpfs. The second counts the bytes passed to write calls, except bytes
        sent over TCP connections. All values are None if the system does not report file usage.
        """
        first = self._first
        if usage.disk_read_bytes is None or usage.block_written_bytes is None:
            return {"disk_read_bytes": None, "disk_written_bytes": None, "block_written_bytes": None}
        assert first.disk_read_bytes is not None
        assert first.block_written_bytes is not None
        blocks = usage.block_written_bytes - first.block_written_bytes
        calls = 0
        if usage.write_calls_bytes is not None and first.write_calls_bytes is not None and traffic is not None:
            assert self._first_traffic is not None
            sent = traffic.sent_bytes + traffic.unsent_bytes - self._first_traffic.unsent_bytes
            calls = usage.write_calls_bytes - first.write_calls_bytes - sent
        self._written = max(self._written, blocks, calls)
        return {
            "disk_read_bytes": usage.disk_read_bytes - first.disk_read_bytes,
            "disk_written_bytes": self._written,
            "block_written_bytes": blocks,
        }

    def _node(self) -> Json:
        if not self._has_interfaces:
            return {"node_sent_bytes": None, "node_received_bytes": None}
        sent, received = interface_bytes()
        return {
            "node_sent_bytes": sent - self._first_interfaces[0],
            "node_received_bytes": received - self._first_interfaces[1],
        }
