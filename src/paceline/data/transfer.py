"""One file over HTTP: resumed where it stopped, checked against its digest, and only then given its name."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from paceline.data.verify import Pin, mismatch

Progress = Callable[[int, int | None], None]  # (done_bytes, total_bytes)

TIMEOUT_S = 30.0
ATTEMPTS_PER_MIRROR = 3
CHUNK_BYTES = 1 << 18


class TransferFailed(Exception):
    """No mirror gave the file; the message says why for each."""


class _Interrupted(Exception):
    """The connection broke; another attempt may get further."""


class _Refused(Exception):
    """This mirror does not give the file; another attempt would meet the same answer."""


def transfer(urls: list[str], target: Path, pin: Pin, progress: Progress) -> None:
    """Get a file from the first address that has it. Raises TransferFailed, or OSError where it cannot be written.

    `target` appears complete and verified or not at all; what was received before an interruption stays in
    `target.part`, and the next call asks only for the rest.
    """
    part = target.with_name(f"{target.name}.part")
    reasons = []
    for url in urls:
        try:
            _complete(url, part, pin, progress)
        except (_Interrupted, _Refused) as error:
            reasons.append(f"{url}: {error}")
        else:
            os.replace(part, target)
            return
    raise TransferFailed("; ".join(reasons))


def _complete(url: str, part: Path, pin: Pin, progress: Progress) -> None:
    """Complete the part from one address, in several attempts where the connection breaks."""
    for attempts_left in reversed(range(ATTEMPTS_PER_MIRROR)):
        resumed = _size(part) > 0
        try:
            if _size(part) != pin.size_bytes:
                _receive(url, part, pin, progress)
        except _Interrupted:
            if not attempts_left:
                raise
            continue
        problem = mismatch(part, pin)
        if not problem:
            return
        part.unlink()
        # Only bytes left over from another time deserve a second try: the same address gives the same bytes.
        if not resumed or not attempts_left:
            raise _Refused(f"what it sent {problem}")


def _receive(url: str, part: Path, pin: Pin, progress: Progress) -> None:
    """Append what the part lacks, or all of the file where the server does not continue in the middle."""
    done_bytes = _size(part)
    if done_bytes > pin.size_bytes:
        part.unlink()
        done_bytes = 0
    with _open(url, done_bytes) as response:
        content_range = response.headers.get("Content-Range") or ""
        continues = response.status == http.client.PARTIAL_CONTENT and content_range.startswith(f"bytes {done_bytes}-")
        if not continues:
            done_bytes = 0
        with part.open("ab" if continues else "wb") as stream:
            progress(done_bytes, pin.size_bytes)
            # One byte too many is enough to know that this is another file.
            while done_bytes <= pin.size_bytes and (chunk := _read(response)):
                stream.write(chunk)
                done_bytes += len(chunk)
                progress(done_bytes, pin.size_bytes)
    if done_bytes < pin.size_bytes:
        raise _Interrupted(f"interrupted after {done_bytes} of {pin.size_bytes} bytes")


def _open(url: str, first_byte: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "paceline"})
    if first_byte:
        request.add_header("Range", f"bytes={first_byte}-")
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise _Refused(f"its file ends before byte {first_byte}") from None
        raise _Refused(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Refused(f"no connection ({error.reason})") from None
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"interrupted ({error})") from None
    return response


def _read(response: http.client.HTTPResponse) -> bytes:
    # Kept apart from writing: an OSError here is the network's, there it is the disk's.
    try:
        return response.read(CHUNK_BYTES)
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"interrupted ({error})") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
