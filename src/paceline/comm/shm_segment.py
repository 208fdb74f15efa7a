"""Memory of one host that several processes see: a file that never had a name, so nothing is left of it.

The creator keeps the file open until everybody has mapped it; from then on only the mappings hold it, and the kernel
frees it with the last of them, however the processes end. Peers reach the open file through the creator's folder in
/proc, which the kernel shows to the same user alone.
"""

from __future__ import annotations

import ctypes
import hmac
import mmap
import os
import secrets
import weakref
from functools import cache

import torch
from torch import Tensor

from paceline.errors import RunError

TOKEN_BYTES = 32
HEADER_BYTES = 4096  # the token's page; what users of a segment put into it starts behind
LINE_BYTES = 64  # a cache line: what different processes write must not share one


class Segment:
    """One piece of shared memory, zeros at first. Tensors made of it keep it alive."""

    def __init__(self, fd: int, nbytes: int, token: bytes) -> None:
        self._fd = fd
        self.token = token
        self.memory = _map(fd, nbytes)

    @staticmethod
    def create(nbytes: int) -> Segment:
        fd = os.memfd_create("paceline")
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, HEADER_BYTES + nbytes)
        segment = Segment(fd, HEADER_BYTES + nbytes, secrets.token_bytes(TOKEN_BYTES))
        segment.memory[:TOKEN_BYTES] = segment.token
        return segment

    @staticmethod
    def attach(address: str) -> Segment:
        """Map what another process created, given what its `address` says."""
        pid, fd_text, token_text = address.split(":")
        path = f"/proc/{pid}/fd/{fd_text}"
        try:
            fd = os.open(path, os.O_RDWR)
        except OSError as error:
            raise RunError(
                f"shared memory of process {pid} cannot be opened ({error.strerror}): workers on comm shm must run "
                "as one user and see each other's processes"
            ) from None
        nbytes = os.fstat(fd).st_size
        if nbytes > HEADER_BYTES:
            segment = Segment(fd, nbytes, bytes.fromhex(token_text))
            segment.close_file()
            if hmac.compare_digest(segment.memory[:TOKEN_BYTES], segment.token):
                return segment
        else:  # nothing of ours is so short, and what is empty cannot be mapped
            os.close(fd)
        raise RunError(f"shared memory of process {pid} is not that of this world: another process has its number")

    @property
    def address(self) -> str:
        """What a peer needs to attach; to be told to peers alone."""
        return f"{os.getpid()}:{self._fd}:{self.token.hex()}"

    def close_file(self) -> None:
        """From now on the memory lives as long as somebody has it mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def tensor(self, offset: int, numel: int, dtype: torch.dtype) -> Tensor:
        """Numbers that lie `offset` bytes behind the header."""
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self.memory, dtype=dtype, count=numel, offset=HEADER_BYTES + offset)

    def words(self, offset: int, count: int) -> memoryview:
        """Whole numbers of 8 bytes, each of which is read and written at once."""
        return self.memory[HEADER_BYTES + offset : HEADER_BYTES + offset + 8 * count].cast("q")


def _map(fd: int, nbytes: int) -> memoryview:
    """A file's bytes as memory, mapped until nobody refers to it; Python's own mmap would keep the file open."""
    address = _libc().mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address in (None, _FAILED):
        raise RunError(f"shared memory of {nbytes} bytes cannot be mapped: {os.strerror(ctypes.get_errno())}")
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _libc().munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def in_lines(nbytes: int) -> int:
    """Bytes rounded up to whole cache lines."""
    return -(-nbytes // LINE_BYTES) * LINE_BYTES
