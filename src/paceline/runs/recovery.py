"""Make the measurements of workers that were killed readable: convert their spool files to JSON lines."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from paceline.errors import RunError
from paceline.results import RUN_FILE
from paceline.runs.locks import not_written, try_lock

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)


def recover_measurements(folder: Path, *, holds_lock: bool = False) -> None:
    """Convert the spool files of ended workers, in the folder of a run or of all runs of a study.

    A run that another process writes to is not changed. `holds_lock` says that this process holds the folder's lock.
    A folder that this user may not change stays as it is.
    """
    for run in [folder, *(file.parent for file in (folder / "runs").glob(f"*/{RUN_FILE}"))]:
        if not any((run / "workers").glob("*.spool")):
            continue
        with ExitStack() as stack:
            if (holds_lock and run == folder) or stack.enter_context(not_written(run)):
                _recover(run / "workers")


def _recover(workers: Path) -> None:
    from paceline.measure.spool import recover

    try:
        descriptor = os.open(workers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if try_lock(descriptor, fcntl.LOCK_EX):  # else another reader is doing the same
                recover(workers)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise RunError(f"measurements in {str(workers)!r} cannot be recovered: {error.strerror}") from error
