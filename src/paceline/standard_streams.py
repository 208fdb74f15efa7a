"""Standard output and standard error that never fail: a command whose output cannot be written continues without it."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# Errors of a reader that is gone (`| head -1`) and of a terminal that was closed. They are no failure of the command.
_READER_IS_GONE = (errno.EPIPE, errno.EIO)


class TolerantFile(io.FileIO):
    """A file that stores its first error in `failure`, and then discards everything that is written to it."""

    failure: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


def tolerate_errors() -> TolerantFile:
    """Replace sys.stdout and sys.stderr by streams that never fail, and return the file below sys.stdout.

    A stream that is closed becomes /dev/null.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number, the lowest that is free
    output = TolerantFile(1, "w", closefd=False)
    sys.stdout = _text_stream(output, sys.stdout)
    sys.stderr = _text_stream(TolerantFile(2, "w", closefd=False), sys.stderr)
    return output


def lost_output(output: TolerantFile) -> str:
    """Flush the standard streams. Return why output was lost, or an empty string if none was lost.

    `output` is the file below sys.stdout. A reader that is gone is no loss.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    failure = output.failure
    return "" if failure is None or failure.errno in _READER_IS_GONE else str(failure.strerror)


def _text_stream(raw: TolerantFile, before: TextIO | None) -> TextIO:
    """Return a text stream on `raw` with the settings of the stream `before`, which is None if it is closed."""
    if not isinstance(before, io.TextIOWrapper):
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="replace")
    return io.TextIOWrapper(
        raw if before.write_through else io.BufferedWriter(raw),  # as Python does with -u
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
