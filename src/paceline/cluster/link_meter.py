"""Measure TCP throughput, round-trip time and CPU share; `cluster.check` runs this program inside emulated nodes.

python -m paceline.cluster.link_meter listen ADDRESS            prints its port; after `send`, also bytes and seconds
python -m paceline.cluster.link_meter send ADDRESS PORT SECONDS
python -m paceline.cluster.link_meter ping ADDRESS PORT TIMES   prints the median round trip in seconds
python -m paceline.cluster.link_meter spin SECONDS PROCESSES    prints the CPU seconds used per second
"""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import sys
import time

PIECE_BYTES = 1 << 18
START_SHARE = 0.3  # fraction of the transfer time that is not counted, while TCP still increases its rate
ECHO, STREAM = b"e", b"s"


def listen(address: str) -> None:
    """Serve one connection. Its first byte selects whether to send each byte back or to measure the receive rate."""
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection:
        if connection.recv(1) == ECHO:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while piece := connection.recv(1):
                connection.sendall(piece)
        else:
            print(json.dumps(_receive(connection)), flush=True)


def _receive(connection: socket.socket) -> dict[str, float]:
    """Return the bytes received and the seconds taken, both without the start of the transfer."""
    buffer = bytearray(PIECE_BYTES)
    arrivals: list[tuple[float, int]] = [(time.monotonic(), 0)]
    total = 0
    while count := connection.recv_into(buffer):
        total += count
        arrivals.append((time.monotonic(), total))
    (first_s, _), (last_s, _) = arrivals[0], arrivals[-1]
    start_s = first_s + START_SHARE * (last_s - first_s)
    begin_s, before = next(arrival for arrival in arrivals if arrival[0] >= start_s)
    return {"bytes": total - before, "seconds": last_s - begin_s}


def send(address: str, port: int, seconds: float) -> None:
    """Send data to a listening peer without a pause, for `seconds`."""
    piece = memoryview(bytearray(PIECE_BYTES))
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(STREAM)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            connection.sendall(piece)


def ping(address: str, port: int, times: int) -> None:
    """Time round trips of one byte to a listening peer, and print their median."""
    trips = []
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(ECHO)
        for _ in range(times):
            begin_s = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.perf_counter() - begin_s)
    print(json.dumps({"median_s": statistics.median(trips)}))


def spin(seconds: float, processes: int) -> None:
    """Keep `processes` processes busy for `seconds`, and print how many cores they got together."""
    begin_s, before_s = time.monotonic(), time.process_time()
    children = []
    for _ in range(processes - 1):
        child = os.fork()
        if child == 0:
            _burn(begin_s + seconds)
            os._exit(0)
        children.append(child)
    _burn(begin_s + seconds)
    for child in children:
        os.waitpid(child, 0)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = time.process_time() - before_s + others.ru_utime + others.ru_stime
    print(json.dumps({"cpus": used_s / (time.monotonic() - begin_s)}))


def _burn(end_s: float) -> None:
    while time.monotonic() < end_s:
        for _ in range(1000):
            pass


JOBS = {
    "listen": lambda words: listen(words[0]),
    "send": lambda words: send(words[0], int(words[1]), float(words[2])),
    "ping": lambda words: ping(words[0], int(words[1]), int(words[2])),
    "spin": lambda words: spin(float(words[0]), int(words[1])),
}

if __name__ == "__main__":
    JOBS[sys.argv[1]](sys.argv[2:])
