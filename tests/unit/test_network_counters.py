"""The kernel's counts of this process's own connections, and of the interfaces of a network of its own."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.measure.network_counters import Connections, Traffic, _traffic, count_interfaces, is_in_own_namespace

NUM_BYTES = 5_000_000

needs_counts = pytest.mark.skipif(
    Connections.open() is None, reason="this kernel gives no byte counts per TCP connection (TCP_INFO)"
)


@contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            yield one, other


def push(source: socket.socket, target: socket.socket, num_bytes: int) -> None:
    """All of it has arrived when this returns."""

    def take() -> None:
        left = num_bytes
        while left:
            left -= len(target.recv(min(left, 1 << 20)))

    reader = threading.Thread(target=take, daemon=True)
    reader.start()
    source.sendall(bytes(num_bytes))
    reader.join(20)
    assert not reader.is_alive()


def open_connections() -> Connections:
    found = Connections.open()
    assert found is not None
    return found


@needs_counts
def test_payload_is_counted_once_in_each_direction() -> None:
    connections = open_connections()
    with connection() as (one, other):
        before = connections.read()
        push(one, other, NUM_BYTES)
        found = connections.read().since(before)
        # Both ends are ours: what one sends, the other receives.
        assert found.sent_bytes == found.received_bytes == NUM_BYTES
        assert found.unsent_bytes == 0
        assert 0 < found.header_bytes < 0.05 * NUM_BYTES + found.retransmitted_bytes


@needs_counts
def test_a_connection_that_was_closed_stays_in_the_count() -> None:
    connections = open_connections()
    before = connections.read()
    for _ in range(2):
        with connection() as (one, other):
            push(one, other, NUM_BYTES)
            connections.read()
    assert connections.read().since(before).sent_bytes == 2 * NUM_BYTES
    assert connections.read().since(before).sent_bytes == 2 * NUM_BYTES


@needs_counts
def test_a_copy_of_a_descriptor_does_not_count_twice() -> None:
    connections = open_connections()
    before = connections.read()
    with connection() as (one, other), one.dup():
        push(one, other, NUM_BYTES)
        assert connections.read().since(before).sent_bytes == NUM_BYTES


@needs_counts
def test_pipes_between_processes_are_no_network() -> None:
    connections = open_connections()
    before = connections.read()
    one, other = socket.socketpair()
    with one, other:
        push(one, other, 100_000)
        assert connections.read().since(before) == Traffic()


@needs_counts
def test_the_blocking_mode_of_a_connection_is_left_alone() -> None:
    connections = open_connections()
    with connection() as (one, _):
        socket.setdefaulttimeout(3.0)  # a wrapper around the descriptor would now switch it to non-blocking
        try:
            connections.read()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(one.fileno())


def test_a_kernel_that_does_not_know_sent_bytes_gives_acknowledged_ones() -> None:
    info = bytearray(256)
    info[5] = 1  # timestamps
    struct.pack_into("=QQI", info, 120, 700, 300, 10)
    struct.pack_into("=QQ", info, 200, 1000, 250)
    assert _traffic(bytes(info), 232, 40) == Traffic(750, 300, 250, 520, 0)
    assert _traffic(bytes(info), 160, 40) == Traffic(700, 300, 0, 520, 0)


def test_interfaces_without_loopback() -> None:
    text = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  999999     100    0    0    0     0          0         0  999999     100    0    0    0     0       0          0
  eth0: 1000 10    0    0    0     0          0         0     2000      10    0    0    0     0       0          0
veth-a:7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0
"""  # noqa: E501
    assert count_interfaces(text) == (2005, 1007)


IN_A_NETWORK_OF_ITS_OWN = """
import socket, subprocess, time
from paceline.measure.resource_usage import ResourceProbe

# Both ends of a cable. Nobody answers for a neighbour there, so nobody is asked where it is.
for words in (
    "link add name near type veth peer name far",
    "addr add 10.9.8.7/24 dev near",
    "link set near arp off up",
    "link set far arp off up",
):
    subprocess.run(["ip", *words.split()], check=True)
# On a busy machine it takes a while until the ends are up, and what is sent before is thrown away.
for end in ("near", "far"):
    deadline = time.monotonic() + 30
    while b"state UP" not in subprocess.run(["ip", "link", "show", end], capture_output=True, check=True).stdout:
        assert time.monotonic() < deadline, end
        time.sleep(0.05)
probe = ResourceProbe()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as away:
    for _ in range(100):
        away.sendto(bytes(1000), ("10.9.8.99", 9))
row = probe.read()
print(row["node_sent_bytes"], row["node_received_bytes"])
"""


def test_an_emulated_nodes_interfaces_are_counted() -> None:
    alone = ["unshare", "--map-root-user", "--net"]
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("unshare and ip, which make a network, are not installed")
    cable = "ip link add name near type veth peer name far"
    made = subprocess.run([*alone, *cable.split()], capture_output=True, timeout=20, check=False)
    if made.returncode:
        pytest.skip("this user may not make a network of its own")
    found = subprocess.run(
        [*alone, sys.executable, "-c", IN_A_NETWORK_OF_ITS_OWN],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert found.returncode == 0, found.stderr
    # With the headers of IP, UDP and the link, and some words that interfaces say when they come up.
    for num_bytes in map(int, found.stdout.split()):
        assert 100 * 1000 < num_bytes < 115 * 1000


def test_this_process_sees_the_network_of_its_parents() -> None:
    probe = "from paceline.measure.network_counters import is_in_own_namespace as own; print(own())"
    child = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == str(is_in_own_namespace())
