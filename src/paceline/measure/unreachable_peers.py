"""Find the peers to which the network of this process is interrupted, from the kernel's state of its connections.

A stopped peer's kernel still acknowledges data. If data stays without any acknowledgement, the link to the peer is cut.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

_FDS = "/proc/self/fd"
_INFO_BYTES = 104
# Offsets in Linux's struct tcp_info.
_UNACKED, _LAST_ACK_RECEIVED = 24, 56


def unreachable_addresses(silent_s: float) -> list[str]:
    """Return the IPv4 addresses of peers that have acknowledged nothing for `silent_s`, although data is in flight."""
    if not sys.platform.startswith("linux"):
        return []
    found = set()
    for name in os.listdir(_FDS):
        info = _info_of(int(name))
        if info is None:
            continue
        (num_unacked,) = struct.unpack_from("=I", info, _UNACKED)
        (last_ack_ms,) = struct.unpack_from("=I", info, _LAST_ACK_RECEIVED)
        if num_unacked and last_ack_ms > 1000 * silent_s:
            found.add(_peer_of(int(name)))
    return sorted(found - {""})


def _info_of(fd: int) -> bytes | None:
    info, size = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint(_INFO_BYTES)
    libc: Any = ctypes.PyDLL(None)
    failed = libc.getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size))
    return None if failed or size.value < _INFO_BYTES else info.raw


def _peer_of(fd: int) -> str:
    """Return the IPv4 address of a connection's other end, or "" if it has another kind of address."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        if connection.family == socket.AF_INET:
            return str(connection.getpeername()[0])
    return ""
