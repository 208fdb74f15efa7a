"""Read how many bytes this process sent and received, from the kernel's network counters.

The counts cover the TCP connections of this process and, on an emulated node (a network namespace that stands for a
host), the node's network interfaces.

TCP_INFO is read from each file descriptor of this process. Unlike netlink's sock_diag, this needs no privilege, works
in containers, and does not slow down on hosts with many sockets.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

_FDS = "/proc/self/fd"
_INTERFACES = "/proc/self/net/dev"
_SO_COOKIE, _SO_DOMAIN = 57, 39  # Linux's numbers, which Python's socket module does not name
_INFO_BYTES = 256
_WITH_TIMESTAMPS = 1  # a bit of tcpi_options
_IP_AND_TCP = {socket.AF_INET: 40, socket.AF_INET6: 60}
_TIMESTAMPS = 12
_NS_GET_USERNS = 0xB701
_FIRST_USERS = 0xEFFFFFFD  # inode of the initial user namespace

# Offsets in Linux's struct tcp_info, which only ever grows at its end.
_OPTIONS, _ACKED, _RECEIVED, _SEGMENTS, _UNSENT, _SENT = 5, 120, 128, 136, 144, 200
_BEFORE_SENT = 160  # size of the struct since Linux 4.6; bytes_sent was added in 4.19
_WITH_SENT = 216


@dataclass(frozen=True)
class Traffic:
    """Byte counts of TCP connections.

    `sent_bytes` and `received_bytes` count payload. If payload is sent again after a loss, it is counted only once.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    retransmitted_bytes: int = 0  # payload that was sent again
    header_bytes: int = 0  # computed: IP and TCP headers of all sent segments, including acknowledgements
    unsent_bytes: int = 0  # payload that is still in the kernel and not counted in `sent_bytes`

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Traffic)))

    def since(self, before: Traffic) -> Traffic:
        """Return the increase of each count since the reading `before`, except `unsent_bytes`, which is not changed."""
        return Traffic(
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            self.retransmitted_bytes - before.retransmitted_bytes,
            self.header_bytes - before.header_bytes,
            self.unsent_bytes,
        )


class Connections:
    """Reads the kernel's counters of this process's TCP connections.

    The totals include closed connections, with the counts of the last reading before they were closed.
    """

    def __init__(self) -> None:
        # PyDLL keeps the GIL: these calls return immediately, and releasing it would take longer.
        self._libc: Any = ctypes.PyDLL(None, use_errno=True)
        self._info = ctypes.create_string_buffer(_INFO_BYTES)
        self._word = ctypes.c_uint64()
        self._open: dict[int, Traffic] = {}  # by the socket's cookie, an id that the kernel never reuses
        self._header_bytes: dict[int, int] = {}  # by cookie: size of one segment's IP and TCP headers
        self._closed = Traffic()

    @staticmethod
    def open() -> Connections | None:
        """Return a reader of the counters, or None if the kernel does not have these counters."""
        if not sys.platform.startswith("linux") or not os.path.isdir(_FDS):
            return None
        found = Connections()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            known = found._info_of(probe.fileno()) >= _BEFORE_SENT and found._cookie_of(probe.fileno()) is not None
        return found if known else None

    def read(self) -> Traffic:
        """Return the sum of the counts of all open and closed connections, each since its opening."""
        found: dict[int, Traffic] = {}
        for name in os.listdir(_FDS):
            fd = int(name)
            size = self._info_of(fd)
            if size < _BEFORE_SENT:  # not a TCP socket, or closed meanwhile
                continue
            cookie = self._cookie_of(fd)
            if cookie is not None:
                found[cookie] = _traffic(self._info.raw, size, self._headers_of(fd, cookie))
        for cookie, traffic in self._open.items():
            if cookie not in found:
                self._closed += traffic
                self._header_bytes.pop(cookie, None)
        self._open = found
        return sum(found.values(), self._closed)

    def _info_of(self, fd: int) -> int:
        size = ctypes.c_uint(_INFO_BYTES)
        failed = self._libc.getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, self._info, ctypes.byref(size))
        return -1 if failed else size.value

    def _cookie_of(self, fd: int) -> int | None:
        size = ctypes.c_uint(8)
        word = self._word
        failed = self._libc.getsockopt(fd, socket.SOL_SOCKET, _SO_COOKIE, ctypes.byref(word), ctypes.byref(size))
        return None if failed else word.value

    def _headers_of(self, fd: int, cookie: int) -> int:
        if cookie not in self._header_bytes:
            size, domain = ctypes.c_uint(4), ctypes.c_int()
            self._libc.getsockopt(fd, socket.SOL_SOCKET, _SO_DOMAIN, ctypes.byref(domain), ctypes.byref(size))
            self._header_bytes[cookie] = _IP_AND_TCP.get(socket.AddressFamily(domain.value), 60)
        return self._header_bytes[cookie]


def _traffic(info: bytes, size: int, header_bytes: int) -> Traffic:
    """Return the counts of one connection from `info`, its TCP_INFO structure of `size` bytes.

    `header_bytes` is the size of one segment's IP and TCP headers without timestamps.
    """
    acked, received, segments = struct.unpack_from("=QQI", info, _ACKED)
    (unsent,) = struct.unpack_from("=I", info, _UNSENT)
    sent, again = struct.unpack_from("=QQ", info, _SENT) if size >= _WITH_SENT else (acked, 0)
    if info[_OPTIONS] & _WITH_TIMESTAMPS:
        header_bytes += _TIMESTAMPS
    return Traffic(sent - again, received, again, segments * header_bytes, unsent)


def is_in_own_namespace() -> bool:
    """Return whether this process has its own network namespace, as in an emulated node.

    The result is True if an ancestor process is in another network namespace. Because not all ancestors are readable,
    there is a second test: the result is also True if the network namespace belongs to this process's own user
    namespace, as with `unshare` and rootless containers.
    """
    try:
        own = os.readlink("/proc/self/ns/net")
        if os.stat("/proc/self/ns/user").st_ino != _FIRST_USERS and _network_is_of_own_users():
            return True
    except OSError:
        return False  # this system has no namespaces
    return any(network != own for network in _networks_of_ancestors())


def _networks_of_ancestors() -> Iterator[str]:
    pid = os.getppid()
    while pid > 0:
        try:
            with suppress(PermissionError):
                yield os.readlink(f"/proc/{pid}/ns/net")
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            return  # the process has ended


def _network_is_of_own_users() -> bool:
    import fcntl

    network = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        owner = fcntl.ioctl(network, _NS_GET_USERNS)
    except OSError:
        return False  # the network namespace belongs to an outer user namespace
    finally:
        os.close(network)
    try:
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino
    finally:
        os.close(owner)


def interface_bytes() -> tuple[int, int]:
    """Return the bytes sent and received by the interfaces of this process's network namespace, except loopback.

    The bytes include headers.
    """
    with open(_INTERFACES, encoding="ascii") as file:
        return count_interfaces(file.read())


def count_interfaces(text: str) -> tuple[int, int]:
    """Return the bytes sent and received by all interfaces except loopback. `text` is the content of /proc/net/dev."""
    sent = received = 0
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            columns = numbers.split()
            received += int(columns[0])
            sent += int(columns[8])
    return sent, received
