"""Write files that survive a crash: a reader finds the old content or the new content, never a part of it.

The content goes to a temporary file beside the target. The temporary file is flushed to the disk and then renamed.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# Errors of fsync where the file system does not support it.
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}


@contextmanager
def durable_file(target: Path) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `target` when the `with` block succeeds. After an error, `target` is unchanged.

    If `target` is a symbolic link, the link itself is replaced.
    """
    with _replacement(target) as (_, descriptor), os.fdopen(descriptor, "wb", closefd=False) as file:
        yield file


@contextmanager
def durable_path(target: Path) -> Iterator[Path]:
    """Create an empty file and yield its path. The file replaces `target` when the `with` block succeeds.

    This is for libraries that write to a path. Use `durable_file` otherwise.
    """
    with _replacement(target) as (temporary, _):
        yield temporary
        _sync(temporary, os.O_RDONLY | os.O_NOFOLLOW)  # the library may have put another file there


@contextmanager
def _replacement(target: Path) -> Iterator[tuple[Path, int]]:
    """Create a temporary file beside `target`, and yield its path and a descriptor that is open for writing.

    Replace `target` with the file when the `with` block succeeds, else remove the file.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    # O_EXCL and O_NOFOLLOW: a file or link that somebody else put there is never opened.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666)
    try:
        try:
            yield temporary, descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):  # on a disk that fails, the error that is raised matters
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_durably(target: Path, content: bytes) -> None:
    """Write `content` to the file `target`. After a crash, the file has its old or its new content, never a part."""
    with durable_file(target) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk, so that new and renamed files are found after a crash."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        os.close(descriptor)
