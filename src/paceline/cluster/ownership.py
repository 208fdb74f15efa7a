"""Whether processes and networks belong to this user, so that root's commands act on root's clusters only."""

from __future__ import annotations

import array
import fcntl
import os
from pathlib import Path

# Requests of the kernel about a namespace, from linux/nsfs.h.
_NS_GET_USERNS, _NS_GET_OWNER_UID = 0xB701, 0xB704


def is_own_process(pid: int) -> bool:
    """Return whether all user ids of a process are this user's.

    The owner of the process's folder in /proc is not enough: it is root for every process that forbids core dumps.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False  # the process has ended
    line = next((line for line in status.splitlines() if line.startswith("Uid:")), "")
    return line.split()[1:] == [str(os.geteuid())] * 4


def is_own_network(pid: int) -> bool:
    """Return whether the network namespace of a process was created by this user.

    A network belongs to a user namespace: to this process's own, in which only privileged processes create networks, or
    to one that a user created.
    """
    descriptors: list[int] = []
    try:
        descriptors.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        descriptors.append(fcntl.ioctl(descriptors[0], _NS_GET_USERNS))
        owner, own = os.fstat(descriptors[1]), os.stat("/proc/self/ns/user")
        if (owner.st_dev, owner.st_ino) == (own.st_dev, own.st_ino):
            return True
        number = array.array("I", [0])
        fcntl.ioctl(descriptors[1], _NS_GET_OWNER_UID, number)
        return number[0] == os.geteuid()
    except OSError:
        return False  # the process has ended, or the user namespace is outside of this process's
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
