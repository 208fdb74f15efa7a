"""Decode image files, and check many of them at once: which cannot be decoded, and why."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import PIL
from PIL import Image, UnidentifiedImageError

from paceline.data.bad_samples import OnProgress, ignore_progress
from paceline.data.published import data_directory
from paceline.durable_files import write_durably
from paceline.errors import BadSampleError

CACHE_FOLDER = "checked-images"
MOST_THREADS = 32


def decode(path: Path, hint: str = "") -> Image.Image:
    """Return an image in RGB, turned upright as its EXIF data says. Raise BadSampleError if it cannot be decoded.

    `hint` is the last part of the error's message. Call this inside `bombs_refused`.
    """
    try:
        with Image.open(path) as file:
            file.load()  # formats such as PNG have their EXIF data at the end
            turn = _TURNS.get(_orientation(file))
            image = file.convert("RGB")
            return image if turn is None else image.transpose(turn)
    except Exception as error:  # decoders raise many types of exceptions for a broken file
        reason = _reason(path, error)
        message = f"image {path} cannot be decoded ({reason}); {hint}".removesuffix("; ")
        raise BadSampleError(message, sample=str(path), reason=reason) from error


# What turns an image upright, by the value of the EXIF tag.
_ORIENTATION_TAG = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:  # parsers raise many types of exceptions for damaged EXIF data; the pixels can still be used
        return 1


@contextmanager
def bombs_refused() -> Iterator[None]:
    """Refuse images of more than `PIL.Image.MAX_IMAGE_PIXELS` pixels while the `with` block runs.

    Pillow only warns about such images unless they are twice as large. Warnings about damaged EXIF data are not shown.
    Warnings are filtered for the whole process, so threads are started inside the block.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", "Corrupt EXIF data")
        yield


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return f"a link to {os.readlink(path)}, which does not exist"
    if isinstance(error, UnidentifiedImageError):
        return "no known image format" if path.stat().st_size else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).rstrip(".") or type(error).__name__


class _Checked(msgspec.Struct, frozen=True, array_like=True):
    """Result of checking one file. The file was not changed since then if its size and time are the same."""

    size: int
    time_ns: int
    reason: str  # why it cannot be decoded; empty if it can


class _Cache(msgspec.Struct, frozen=True):
    """Results of earlier checks of the files in one folder. `pillow` is the version that decoded them."""

    pillow: str
    files: dict[str, _Checked] = {}


def find_bad_images(root: Path, paths: Sequence[Path], on_progress: OnProgress = ignore_progress) -> dict[Path, str]:
    """Decode all images with several threads. Return the reason for each one that cannot be decoded.

    Results are kept in a file in the user's cache folder, and used again for files of the same size and time of change.
    `root` is the folder of all images.
    """
    file = _cache_file(root)
    before = _read_cache(file)
    known = {path: before.files[str(path)] for path in paths if _is_current(path, before.files.get(str(path)))}
    todo = [path for path in paths if path not in known]
    on_progress(len(known), len(paths))
    with bombs_refused(), ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS)) as threads:
        for path, checked in zip(todo, threads.map(_check, todo), strict=True):
            known[path] = checked
            on_progress(len(known), len(paths))
    if todo:
        kept = {str(path): checked for path, checked in known.items() if checked.time_ns}
        # Without a cache, the files are only checked again.
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_durably(file, msgspec.json.encode(_Cache(PIL.__version__, {**before.files, **kept})))
    return {path: known[path].reason for path in paths if known[path].reason}


def _check(path: Path) -> _Checked:
    try:
        facts = path.stat()
        size, time_ns = facts.st_size, facts.st_mtime_ns
    except OSError:
        size, time_ns = 0, 0  # such as a link to a missing file: `decode` finds the reason
    try:
        decode(path)
    except BadSampleError as error:
        return _Checked(size, time_ns, error.reason)
    return _Checked(size, time_ns, "")


def _is_current(path: Path, checked: _Checked | None) -> bool:
    if checked is None:
        return False
    try:
        facts = path.stat()
    except OSError:
        return False
    return (facts.st_size, facts.st_mtime_ns) == (checked.size, checked.time_ns)


def _cache_file(root: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return data_directory() / CACHE_FOLDER / f"{digest}.json"


def _read_cache(file: Path) -> _Cache:
    """Return the results in a file; none if there is no such file, if it is damaged or if another Pillow wrote it."""
    empty = _Cache(PIL.__version__)
    try:
        cache = msgspec.json.decode(file.read_bytes(), type=_Cache)
    except (OSError, msgspec.DecodeError):
        return empty
    return cache if cache.pillow == PIL.__version__ else empty
