"""Access to files and folders of cgroups that fails everywhere else.

Root manages clusters with these functions. They follow no links and work only in a file system of the kernel's cgroups,
so that nobody can make root write to other files, or end other processes, with folders that look like a cluster's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from functools import cache
from pathlib import Path

from paceline.cluster.layout import LABEL, NAME_PATTERN, NODE_PATTERN

_MAGIC_NUMBERS = {0x27E0EB, 0x63677270}  # f_type of cgroup file systems of versions 1 and 2, from linux/magic.h
_GROUP = re.compile(f"{LABEL}({NAME_PATTERN})")
_NODE = re.compile(NODE_PATTERN)
_STATFS_BYTES = 256  # more than a struct statfs has; its first field is f_type


def write_group_file(file: Path, text: str) -> None:
    """Write a text to a file of a cgroup. An error names the file and the text."""
    try:
        with os.fdopen(_open(file, os.O_WRONLY), "w", encoding="ascii") as stream:
            stream.write(text)
    except OSError as error:
        raise OSError(error.errno, f"{file}: {error.strerror} (writing {text!r})") from None


def read_group_file(file: Path) -> str:
    with os.fdopen(_open(file, os.O_RDONLY), encoding="ascii") as stream:
        return stream.read()


def check_group_folder(folder: Path) -> None:
    """Raise OSError if a path is not the folder of a cgroup that belongs to this user."""
    descriptor = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{folder}: it belongs to another user")
    finally:
        os.close(descriptor)


def name_of_cluster(folder: Path) -> str:
    """Return the name of the cluster that a cgroup folder was made for, or "" if it was not made by this user for one.

    A cluster's cgroup has a name of our exact form, holds no processes itself, and has only cgroups of nodes inside.
    """
    match = _GROUP.fullmatch(folder.name)
    if match is None:
        return ""
    try:
        check_group_folder(folder)
        with os.scandir(folder) as entries:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        is_ours = all(_NODE.fullmatch(name) for name in inner) and not read_group_file(folder / "cgroup.procs").split()
    except (OSError, UnicodeDecodeError):
        return ""
    return match[1] if is_ours and not any(_has_folders(folder / name) for name in inner) else ""


def members(folder: Path) -> set[int]:
    """Return the ids of the processes in a cluster's cgroup and in the cgroups of its nodes."""
    pids: set[int] = set()
    for group in groups_in(folder):
        with contextlib.suppress(FileNotFoundError):  # removed in the meantime
            pids |= {int(word) for word in read_group_file(group / "cgroup.procs").split()}
    return pids


def groups_in(top: Path) -> list[Path]:
    """Return the cgroups of a cluster's nodes, then that of the cluster itself."""
    try:
        names = sorted(name for name in os.listdir(top) if _NODE.fullmatch(name))
    except FileNotFoundError:
        return []
    return [*(top / name for name in names), top]


def _has_folders(folder: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)
    return False


def _open(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not is_in_cgroupfs(descriptor):
            raise OSError(errno.EINVAL, "it is not in a file system of cgroups", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_in_cgroupfs(descriptor: int) -> bool:
    """Return whether an open file is in a file system of the kernel's cgroups."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc().fstatfs(descriptor, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(buffer).value in _MAGIC_NUMBERS


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
