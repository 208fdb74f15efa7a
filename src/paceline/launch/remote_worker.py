"""Main program of a worker process on another host. It exchanges messages through its standard input and output.

The launcher for --hosts starts it over ssh as `python -m paceline.launch.remote_worker`. The first line of its input is
a token. The worker prints the token, so that the launcher can skip everything that the login printed before. From then
on it works like a local worker, except that messages are encoded as MessagePack instead of pickles.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import paceline
from paceline.launch.messages import Enter, Failed, MessageError, MessagePackChannel
from paceline.launch.worker_process import serve

MAX_TOKEN_BYTES = 1000
MARK = "paceline worker"
FACT_NAMES = {
    "python": "Python",
    "paceline": "paceline",
    "source": "source files of paceline with digest",
    "torch": "torch",
    "byte_order": "byte order",
}


def main() -> None:
    token = _read_line(0)
    inward, outward = os.dup(0), os.dup(1)
    # Redirect standard output to standard error, so that printed text does not enter the pipe.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    facts = {**own_facts(), "address": _own_address()}
    os.write(outward, f"\n{MARK} {token} {json.dumps(facts)}\n".encode())
    pipe = MessagePackChannel(Connection(inward, writable=False), Connection(outward, readable=False))
    try:
        order = pipe.receive_order()
    except EOFError:
        sys.exit(1)  # the launcher rejected this worker
    except MessageError as error:
        sys.exit(f"the launcher sent {error}")
    if not isinstance(order, Enter):
        sys.exit("the launcher must send the working directory first")
    try:
        os.chdir(order.folder)
    except OSError as error:
        reason = f"the working directory {order.folder!r} cannot be opened there: {error.strerror}"
        pipe.send(Failed("raised", reason))
        sys.exit(1)
    sys.path += [entry for entry in order.path if entry not in sys.path and os.path.isdir(entry)]
    serve(pipe, is_on_this_host=False)


def _own_address() -> str:
    """Return the address at which the ssh client reached this host, or "" if it is unknown."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _read_line(fd: int) -> str:
    """Read one line byte by byte: a buffered read would also take the messages that follow the line."""
    line = b""
    while not line.endswith(b"\n"):
        letter = os.read(fd, 1)
        if not letter or len(line) > MAX_TOKEN_BYTES:
            sys.exit("paceline.launch.remote_worker is started by paceline itself: use --hosts")
        line += letter
    return line.decode().strip()


def own_facts() -> dict[str, str]:
    """Return what must be equal on all hosts: versions, a digest of paceline's source files, and byte order."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = "missing"
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "paceline": paceline.__version__,
        "source": _source_digest(),
        "torch": torch_version,
        "byte_order": sys.byteorder,
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Describe the first value of `own_facts` that differs between this host (`ours`) and another host (`theirs`).

    Returns "" if all are equal.
    """
    for key, word in FACT_NAMES.items():
        if ours.get(key) != theirs.get(key):
            return f"it has {word} {theirs.get(key, 'unknown')}, this host {ours.get(key)}"
    return ""


@functools.cache
def _source_digest() -> str:
    """Return a digest of paceline's source files, since two different copies may have the same version number."""
    digest = hashlib.sha256()
    folder = Path(paceline.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    main()
