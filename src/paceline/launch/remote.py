"""A worker on another host, started there by ssh: standard input and output are its pipe to whoever started it.

Started as `python -m paceline.launch.remote`. The first line that comes in is a token; saying it back tells the other
end where a login's own words end and the worker's begin, and that nobody else speaks. Then as any worker.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

from paceline.launch.process import serve
from paceline.launch.sameness import own_facts

MARK = "paceline worker"


class TwoWay:
    """A pipe made of two: one to read from, one to write to."""

    def __init__(self, inward: int, outward: int) -> None:
        self._inward: Any = Connection(inward, writable=False)
        self._outward: Any = Connection(outward, readable=False)

    def fileno(self) -> int:
        return int(self._inward.fileno())

    def recv_bytes(self) -> bytes:
        return bytes(self._inward.recv_bytes())

    def send(self, message: Any) -> None:
        self._outward.send(message)


def main() -> None:
    token = _read_line(0)
    inward, outward = os.dup(0), os.dup(1)
    # Whatever else is printed here must not end up in the pipe.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    facts = {**own_facts(), "address": _own_address()}
    os.write(outward, f"\n{MARK} {token} {json.dumps(facts)}\n".encode())
    pipe = TwoWay(inward, outward)
    try:
        order = pickle.loads(pipe.recv_bytes())
    except EOFError:
        sys.exit(1)  # the other end does not want this worker
    try:
        os.chdir(order["folder"])
    except OSError as error:
        reason = f"the working directory {order['folder']!r} cannot be entered there: {error.strerror}"
        pipe.send({"kind": "raised", "message": reason, "traceback": ""})
        sys.exit(1)
    sys.path += [entry for entry in order["path"] if entry not in sys.path and os.path.isdir(entry)]
    serve(pipe)


def _own_address() -> str:
    """The address of this host at which it was reached, as ssh says it."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else ""


def _read_line(fd: int) -> str:
    """Up to the end of the line and no further: what follows is the pipe's."""
    line = b""
    while not line.endswith(b"\n"):
        letter = os.read(fd, 1)
        if not letter:
            sys.exit("paceline.launch.remote is started by paceline itself: see --hosts")
        line += letter
    return line.decode().strip()


if __name__ == "__main__":
    main()
