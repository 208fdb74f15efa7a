"""Obtain the files of published data sets (MNIST, CIFAR-10): find, download or unpack them, and verify them."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from paceline.data.published import PUBLISHED, Pin, PublishedDataset, data_directory
from paceline.errors import UsageError, unknown

if sys.platform != "win32":
    import fcntl

Progress = Callable[[int, int | None], None]  # (done_bytes, total_bytes)

TIMEOUT_S = 30.0
ATTEMPTS_PER_MIRROR = 3
CHUNK_BYTES = 1 << 18


def ignore_progress(done_bytes: int, total_bytes: int | None) -> None:
    """Progress callback that does nothing."""


def fetch(name: str, directory: str | os.PathLike[str] = "", progress: Progress = ignore_progress) -> Path:
    """Download the missing files of a published data set, verify all its files and return the data directory.

    `progress` is called with the received and the total number of bytes of all downloads together. It is not called if
    nothing is downloaded.
    """
    if name not in PUBLISHED:
        raise unknown("data to fetch", name, PUBLISHED)
    obtain(PUBLISHED[name], data_directory(directory), may_download=True, progress=progress)
    return data_directory(directory)


def obtain(
    published: PublishedDataset, directory: Path, *, may_download: bool, progress: Progress = ignore_progress
) -> dict[str, Path]:
    """Return the path of every file of a data set, after verifying size and digest of the files.

    Missing files are unpacked from the archive if it is in `directory`, or else downloaded if `may_download` is set.
    Raises UsageError if a file is missing or wrong, or if `directory` cannot be written to.
    """
    paths = published.find(directory)
    if len(paths) < len(published.files):
        archived = any(os.path.isfile(directory / archive) for archive in published.archive)
        if not may_download and not archived:
            raise published.missing_error(directory, "downloading is off (--no-download)")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with _download_lock(directory):
                _add_missing(published, directory, progress)
        except OSError as error:
            raise UsageError(
                f"data {published.name!r} cannot be written to {directory} ({error.strerror or error}); "
                f"name a folder that can be written with --data-dir"
            ) from None
        paths = published.find(directory)
    for file, path in paths.items():
        _verify(path, published.files[file][path.name])
    return paths


def _verify(path: Path, pin: Pin) -> None:
    problem = pin.mismatch(path)
    if problem:
        raise UsageError(f"data file {path} {problem}; delete it and download it again")


def _add_missing(published: PublishedDataset, directory: Path, progress: Progress) -> None:
    # Look again: another process may have completed the files while this one waited for the lock.
    missing = [file for file in published.files if file not in published.find(directory)]
    if not missing:
        return
    folder = directory / published.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    if not published.archive:
        compressed = [list(published.files[file].items())[-1] for file in missing]
        _download(published, dict(compressed), folder, directory, progress)
        return
    [(name, pin)] = published.archive.items()
    archive = directory / name
    if os.path.isfile(archive):
        _verify(archive, pin)
        _unpack(published, archive, folder)
    else:
        _download(published, dict(published.archive), directory, directory, progress)
        _unpack(published, archive, folder)
        archive.unlink()


def _download(
    published: PublishedDataset, files: dict[str, Pin], into: Path, directory: Path, progress: Progress
) -> None:
    total_bytes = sum(pin.size_bytes for pin in files.values())
    before_bytes = 0
    for name, pin in files.items():

        def overall(done_bytes: int, before_bytes: int = before_bytes) -> None:
            progress(before_bytes + done_bytes, total_bytes)

        reasons = []
        for mirror in published.mirrors:
            reason = _download_from(mirror + name, into / name, pin, overall)
            if not reason:
                break
            reasons.append(f"{mirror}{name}: {reason}")
        else:
            raise published.missing_error(directory, f"downloading failed ({'; '.join(reasons)})")
        before_bytes += pin.size_bytes


def _download_from(url: str, target: Path, pin: Pin, progress: Callable[[int], None]) -> str:
    """Download one file. Return why the download failed, or an empty string if it succeeded.

    Raises OSError if the file cannot be written.
    """
    import pooch  # imported only here, because most runs download nothing
    from requests import exceptions

    pooch.get_logger().setLevel("WARNING")  # its log goes to standard error
    # With another encoding, requests might decompress the file, and the digest would not match.
    headers = {"User-Agent": "paceline", "Accept-Encoding": "identity"}
    get = pooch.HTTPDownloader(chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S, headers=headers)

    def download(url: str, temporary: str, _: object) -> None:
        with open(temporary, "wb") as file:
            progress(0)
            get(url, _ProgressFile(file, pin.size_bytes, progress), None)
        problem = pin.mismatch(Path(temporary))
        if problem:
            raise _UnexpectedContent(f"the received file {problem}")
        os.chmod(temporary, target.parent.stat().st_mode & 0o666)  # only the owner may read pooch's temporary file

    reason = ""
    for _ in range(ATTEMPTS_PER_MIRROR):
        try:
            pooch.retrieve(url, pin.digest, target.name, target.parent, downloader=download)
        except _UnexpectedContent as error:
            return str(error)
        except exceptions.HTTPError as error:
            answer = error.response
            return f"HTTP {answer.status_code} {answer.reason}" if answer is not None else str(error)
        except (exceptions.ChunkedEncodingError, exceptions.ReadTimeout) as error:
            reason = f"interrupted ({error})"  # the only failure worth another attempt
        except exceptions.RequestException as error:
            return f"no connection ({error})"
        else:
            return ""
    return reason


class _UnexpectedContent(Exception):
    """Raised if the file that a mirror sends is not the expected one."""


class _ProgressFile:
    """A file that reports how many bytes were written to it, and refuses more bytes than expected."""

    def __init__(self, file: IO[bytes], size_bytes: int, progress: Callable[[int], None]) -> None:
        self.flush = file.flush
        self._file, self._size_bytes, self._progress = file, size_bytes, progress
        self._done_bytes = 0

    def write(self, chunk: bytes) -> None:
        self._done_bytes += len(chunk)
        if self._done_bytes > self._size_bytes:
            raise _UnexpectedContent(f"the received file has more than the expected {self._size_bytes} bytes")
        self._file.write(chunk)
        self._progress(self._done_bytes)


def _unpack(published: PublishedDataset, archive: Path, folder: Path) -> None:
    """Extract the files of a data set from an archive into a folder, without the other files of the archive.

    All files are verified before the first one appears in the folder.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f".{archive.name}.", dir=folder))
    try:
        pins = {file: pin for forms in published.files.values() for file, pin in forms.items()}
        names = []
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if member.isfile() and name in pins:
                    content = tar.extractfile(member)
                    assert content is not None
                    # Copy only the content, because paths, owners and modes in an archive cannot be trusted.
                    with content, (temporary / name).open("wb") as target:
                        shutil.copyfileobj(content, target)
                    names.append(name)
        missing = sorted(set(pins) - set(names))
        if missing:
            raise UsageError(f"data file {archive} has no {', '.join(missing)} in it; delete it and download it again")
        for name in names:
            problem = pins[name].mismatch(temporary / name)
            if problem:
                raise UsageError(f"{name} in data file {archive} {problem}; delete the archive and download it again")
        for name in names:
            os.replace(temporary / name, folder / name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"data file {archive} cannot be unpacked ({error}); delete it and download it again") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _download_lock(directory: Path) -> Iterator[None]:
    """Context manager: let only one process at a time download into a directory. On Windows there is no lock."""
    with (directory / ".fetch.lock").open("w") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock, even when the process is killed
