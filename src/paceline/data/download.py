"""Getting published data: find the files, or unpack them, or download them; and verify them in any case."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.data.published import PUBLISHED, PublishedDataset, data_directory
from paceline.data.transfer import Progress, TransferFailed, transfer
from paceline.data.verify import Pin, mismatch, verify
from paceline.errors import UsageError, unknown

if sys.platform != "win32":
    import fcntl


def silent(done_bytes: int, total_bytes: int | None) -> None:
    """Progress that nobody sees."""


def fetch(name: str, directory: str | os.PathLike[str] = "", progress: Progress = silent) -> Path:
    """Make sure that a published data set is there, complete and verified; returns the directory.

    Progress counts the bytes of this call's downloads together and is not called where nothing was missing.
    """
    if name not in PUBLISHED:
        raise unknown("data to fetch", name, PUBLISHED)
    obtain(PUBLISHED[name], data_directory(directory), may_download=True, progress=progress)
    return data_directory(directory)


def obtain(
    published: PublishedDataset, directory: Path, *, may_download: bool, progress: Progress = silent
) -> dict[str, Path]:
    """A verified path for every file of a data set, or UsageError that names what is missing or wrong."""
    found = published.find(directory)
    if len(found) < len(published.files):
        archived = any(os.path.isfile(directory / archive) for archive in published.archive)
        if not may_download and not archived:
            raise published.missing(directory, "downloading is off (--no-download)")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(directory):
                _complete(published, directory, may_download, progress)
        except OSError as error:
            raise UsageError(
                f"data {published.name!r} cannot be written to {directory} ({error.strerror or error}); "
                f"name a folder that can be written with --data-dir"
            ) from None
        found = published.find(directory)
    verify((path, published.files[file][path.name]) for file, path in found.items())
    return found


def _complete(published: PublishedDataset, directory: Path, may_download: bool, progress: Progress) -> None:
    # Another process may have done it all while this one waited for its turn.
    missing = [file for file in published.files if file not in published.find(directory)]
    if not missing:
        return
    home = directory / published.folders[0]
    home.mkdir(parents=True, exist_ok=True)
    if not published.archive:
        compressed = [list(published.files[file].items())[-1] for file in missing]
        _download(published, dict(compressed), home, directory, progress)
        return
    [(name, pin)] = published.archive.items()
    archive = directory / name
    if os.path.isfile(archive):
        verify([(archive, pin)])
        _unpack(published, archive, home)
    else:
        assert may_download
        _download(published, dict(published.archive), directory, directory, progress)
        _unpack(published, archive, home)
        archive.unlink()  # ours, and its content is beside it now


def _download(
    published: PublishedDataset, files: dict[str, Pin], into: Path, directory: Path, progress: Progress
) -> None:
    total_bytes = sum(pin.size_bytes for pin in files.values())
    before_bytes = 0
    for name, pin in files.items():

        def together(done_bytes: int, _: int | None, before_bytes: int = before_bytes) -> None:
            progress(before_bytes + done_bytes, total_bytes)

        try:
            transfer([mirror + name for mirror in published.mirrors], into / name, pin, together)
        except TransferFailed as error:
            raise published.missing(directory, f"downloading failed ({error})") from None
        before_bytes += pin.size_bytes


def _unpack(published: PublishedDataset, archive: Path, home: Path) -> None:
    """Take the known files, and nothing else, out of an archive; each appears complete and verified."""
    beside = Path(tempfile.mkdtemp(prefix=f".{archive.name}.", dir=home))
    try:
        wanted = {file: pin for forms in published.files.values() for file, pin in forms.items()}
        unpacked = []
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if member.isfile() and name in wanted:
                    content = tar.extractfile(member)
                    assert content is not None
                    with content, (beside / name).open("wb") as target:  # its bytes alone: no path, owner or mode
                        shutil.copyfileobj(content, target)
                    unpacked.append(name)
        lacking = sorted(set(wanted) - set(unpacked))
        if lacking:
            raise UsageError(f"data file {archive} has no {', '.join(lacking)} in it; delete it and get it again")
        for name in unpacked:
            problem = mismatch(beside / name, wanted[name])
            if problem:
                raise UsageError(f"{name} in data file {archive} {problem}; delete the archive and get it again")
        for name in unpacked:
            os.replace(beside / name, home / name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"data file {archive} cannot be unpacked ({error}); delete it and get it again") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Workers that start together must not download together."""
    with (directory / ".fetch.lock").open("w") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, even where the process is killed
