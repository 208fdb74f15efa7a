"""System calls for network namespaces, which Python 3.11 does not provide."""

from __future__ import annotations

import ctypes
import os

from paceline.cluster.layout import USER

_NEW_NETWORK = 0x40000000
_NEW_USER = 0x10000000


def leave_network(entry: str) -> None:
    """Move this process into a new network namespace; with `USER`, as root of a new user namespace."""
    if entry != USER:
        new_network()
        return
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW_USER | _NEW_NETWORK)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {user} 1")
    _write("/proc/self/gid_map", f"0 {group} 1")


def new_network() -> None:
    _call("unshare", _NEW_NETWORK)


def enter_network(descriptor: int) -> None:
    _call("setns", descriptor, _NEW_NETWORK)


def hold_network(number: int) -> None:
    """Hold the current network namespace open as the file descriptor `number`."""
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.dup2(descriptor, number, inheritable=False)
    os.close(descriptor)


def _call(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
