"""Shared memory for comm `shm`: segments that the workers of one host map, and fast copies and sums in them.

The memory is an anonymous file (memfd). Its creator keeps the file open until all peers have mapped it. From then on,
the memory exists as long as a process maps it, and the kernel frees it even if processes crash. Peers open the file
through the creator's folder in /proc, which the kernel restricts to the same user. Before they map it, they check that
the file is a memfd of this user, has a size that cannot change, and holds the token of the run. An address that a
stranger wrote can therefore not make a worker map and overwrite another file.
"""

from __future__ import annotations

import ctypes
import fcntl
import hmac
import mmap
import os
import re
import secrets
import stat
import weakref
from functools import cache

import torch
from torch import Tensor

from paceline.errors import RunError

TOKEN_BYTES = 32  # random bytes by which a peer recognises the memory of its own run
HEADER_BYTES = 4096  # a page that holds the token; offsets into a segment count from the end of this header
LINE_BYTES = 64  # a cache line; data that different processes write must not share one
MEMMOVE_BYTES = 64 << 10  # from this size on, the C library copies faster than torch
_NAME = "paceline"
_LINK = f"/memfd:{_NAME} (deleted)"  # the name that /proc shows for the segment's file
_ADDRESS = re.compile(rf"([0-9]{{1,9}}):([0-9]{{1,9}}):([0-9a-f]{{{2 * TOKEN_BYTES}}})")  # process, descriptor, token


class Segment:
    """A block of shared memory, initially zeros. It stays mapped as long as a tensor in it exists."""

    def __init__(self, fd: int, nbytes: int, token: bytes) -> None:
        self._fd = fd
        self.token = token
        self.memory = _map(fd, nbytes)

    @staticmethod
    def create(nbytes: int) -> Segment:
        fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, HEADER_BYTES + nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _seals())
        segment = Segment(fd, HEADER_BYTES + nbytes, secrets.token_bytes(TOKEN_BYTES))
        segment.memory[:TOKEN_BYTES] = segment.token
        return segment

    @staticmethod
    def attach(address: str) -> Segment:
        """Map the segment that another process created. `address` is the creator's `Segment.address`.

        Raises RunError, without mapping anything, if the address is malformed or leads to any other file.
        """
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise RunError(
                f"{address[:40]!r} in the rendezvous store is not the address of shared memory; start the run again"
            )
        pid, number, token = int(match[1]), int(match[2]), bytes.fromhex(match[3])
        fd = _open_segment(pid, number, token)
        segment = Segment(fd, os.fstat(fd).st_size, token)
        segment.close_file()
        return segment

    @property
    def address(self) -> str:
        """The text that a peer passes to `attach`. Only peers may read the text, since it contains the secret token."""
        return f"{os.getpid()}:{self._fd}:{self.token.hex()}"

    def close_file(self) -> None:
        """Close the segment's file. The memory remains as long as a process maps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def tensor(self, offset: int, numel: int, dtype: torch.dtype) -> Tensor:
        """Return `numel` elements of the memory as a vector, starting `offset` bytes after the segment's header."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=numel, offset=HEADER_BYTES + offset)

    def words(self, offset: int, count: int) -> memoryview:
        """Return a view of `count` integers of 8 bytes, each of which is read and written atomically.

        The view starts `offset` bytes after the segment's header.
        """
        return self.memory[HEADER_BYTES + offset : HEADER_BYTES + offset + 8 * count].cast("q")


def _open_segment(pid: int, number: int, token: bytes) -> int:
    """Open the segment behind descriptor `number` of process `pid`, and return a descriptor of this process.

    Raises RunError if the file is not a segment that holds the token.
    """
    # O_PATH opens nothing yet, so that the file's type can be checked first: opening a pipe or a device has effects.
    try:
        found = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(
            f"shared memory of process {pid} cannot be opened ({error.strerror}): workers on comm shm must run "
            "as one user and see each other's processes; otherwise use comm torch"
        ) from None
    path = f"/proc/self/fd/{found}"
    try:
        is_own_file = _is_own_memfd(os.fstat(found)) and os.readlink(path) == _LINK
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC) if is_own_file else -1
    except OSError:
        fd = -1
    finally:
        os.close(found)
    if fd >= 0 and _holds(fd, token):
        return fd
    if fd >= 0:
        os.close(fd)
    raise RunError(
        f"shared memory of process {pid} does not belong to this run: the worker has ended and another process has "
        "its process id; start the run again"
    )


def _is_own_memfd(status: os.stat_result) -> bool:
    """Return whether a file is regular, belongs to this user and has no name in a file system, as a memfd."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 0


def _holds(fd: int, token: bytes) -> bool:
    """Return whether a file is a memfd whose size is sealed, longer than a header, and that begins with the token."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return (
            seals & _seals() == _seals()
            and os.fstat(fd).st_size > HEADER_BYTES
            and hmac.compare_digest(os.pread(fd, TOKEN_BYTES, 0), token)
        )
    except OSError:  # only memory files have seals
        return False


def _seals() -> int:
    """Return the seals of a segment. With them nobody can change its size, so reading mapped memory never fails."""
    return fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def _map(fd: int, nbytes: int) -> memoryview:
    """Map a file and return its memory, which is unmapped when nothing refers to it any more.

    Python's own mmap would keep the file open.
    """
    address = libc().mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, _FAILED):
        raise RunError(f"shared memory of {nbytes} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, libc().munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


_FAILED = ctypes.c_void_p(-1).value


@cache
def libc() -> ctypes.CDLL:
    """Return the C library. Calls through it release the interpreter lock."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def round_up_to_lines(nbytes: int) -> int:
    """Round a size in bytes up to whole cache lines."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES


def add_up(rows: Tensor, into: Tensor) -> Tensor:
    """Write the sum of all rows (for bool, the logical or) to `into`, and return `into`.

    `into` must not overlap the rows.
    """
    if rows.dtype == torch.bool:
        return torch.any(rows, 0, out=into)
    torch.sum(rows, 0, dtype=rows.dtype, out=into)
    return into


def copy(target: Tensor, source: Tensor) -> None:
    """Copy the contiguous tensor `source` to `target`.

    Long CPU tensors are copied by memmove, because it does not load the target into the cache first.
    """
    nbytes = target.numel() * target.element_size()
    if nbytes < MEMMOVE_BYTES or target.is_cuda or source.is_cuda:
        target.copy_(source)
    else:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), nbytes)


def part_bounds(numel: int, world_size: int, itemsize: int) -> list[int]:
    """Return `world_size` + 1 indices that divide a vector of `numel` elements into one slice per worker.

    Slices begin at multiples of a cache line, and may be empty.
    """
    per_line = max(LINE_BYTES // itemsize, 1)
    size = -(-numel // (world_size * per_line)) * per_line
    return [min(size * rank, numel) for rank in range(world_size + 1)]
