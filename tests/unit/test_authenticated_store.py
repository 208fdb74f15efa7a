"""The rendezvous store answers only those who know its secret, and reports changed messages."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import torch

from helpers import free_port
from paceline.authenticated_channel import AuthenticatedChannel, ChannelError, WrongSecret, new_secret
from paceline.comm import CommError
from paceline.comm import authenticated_store as module
from paceline.comm import greeting as greeting_module
from paceline.comm.authenticated_store import AuthenticatedStore, StoreServer, open_store
from paceline.comm.torch import TorchComm, prefix_store, wait_for

SECRET = new_secret()


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", 0, SECRET)
    yield server
    server.close()


def client(server: StoreServer, *, timeout_s: float = 10) -> AuthenticatedStore:
    return AuthenticatedStore("127.0.0.1", server.port, SECRET, timeout_s=timeout_s)


def test_clients_share_keys(server: StoreServer) -> None:
    one, other = client(server), client(server)
    one.set("key", b"\x00\xff")
    one.set("text", "words")
    assert (other.get("key"), other.get("text")) == (b"\x00\xff", b"words")
    assert (other.add("count", 2), one.add("count", -5), one.get("count")) == (2, -3, b"-3")
    assert (one.check(["key", "text"]), one.check(["key", "none"])) == (True, False)
    assert (one.delete_key("key"), one.delete_key("key"), other.check(["key"])) == (True, False, False)
    assert one.clone().get("text") == b"words"
    assert one.compare_set("new", "", "1") == b"1"
    assert one.compare_set("new", "2", "3") == b"1"
    assert one.compare_set("new", "1", "3") == other.get("new") == b"3"
    assert (one.compare_set("none", "1", "3"), one.check(["none"])) == (b"1", False)
    view = prefix_store("more", one)
    assert view.clone().check(["text"]) is False
    assert view.has_extended_api()
    view.multi_set(["a", "b"], [b"1", b"2"])
    view.append("b", b"3")
    assert (view.multi_get(["b", "a"]), other.get("more/b")) == ([b"23", b"1"], b"23")


def test_a_client_waits_for_a_key(server: StoreServer) -> None:
    one, other = prefix_store("a", late := client(server)), prefix_store("a", early := client(server))
    thread = threading.Thread(target=lambda: one.set("key", "value"))
    thread.start()
    assert wait_for(other, "key", 10) == b"value"
    thread.join(10)
    assert (early.check(["a/key"]), late.get("a/key")) == (True, b"value")


def test_a_key_that_nobody_sets_is_a_timeout(server: StoreServer) -> None:
    store = client(server, timeout_s=0.05)
    with pytest.raises(RuntimeError, match=r"timeout: key was not set within 0.05 s"):
        store.get("key")
    with pytest.raises(RuntimeError, match="timeout: one, two was not set"):
        store.wait(["one", "two"], timedelta(seconds=0.05))
    assert wait_for(store, "key", 0.05) is None


def test_a_server_that_ends_is_reported(server: StoreServer) -> None:
    store = client(server)
    store._channel.close()
    with pytest.raises(CommError, match="the process that hosts the rendezvous store is gone"):
        wait_for(store, "key", 5)


def test_another_secret_is_refused(server: StoreServer) -> None:
    own = client(server)
    own.set("key", "value")
    with pytest.raises(WrongSecret, match="it has another secret"):
        AuthenticatedStore("127.0.0.1", server.port, new_secret(), timeout_s=10)
    assert list(server.refused) == ["127.0.0.1"]
    assert own.get("key") == b"value"


def test_a_server_without_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"paceline store 1\n" + bytes(32))
                connection.recv(64)
                connection.sendall(b"\x01" + bytes(32))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(WrongSecret, match="it does not know the secret"):
            AuthenticatedStore("127.0.0.1", listener.getsockname()[1], SECRET, timeout_s=10)
        thread.join(10)


def test_another_program_at_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"220 mail.example.org ESMTP ready")
                with suppress(ConnectionResetError):
                    connection.recv(1)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ChannelError, match="not a rendezvous of paceline"):
            AuthenticatedStore("127.0.0.1", listener.getsockname()[1], SECRET, timeout_s=10)
        thread.join(10)


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000])
def test_strangers_do_not_disturb(server: StoreServer, garbage: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), 10) as stranger,
        socket.create_connection(("127.0.0.1", server.port), 10),
    ):
        stranger.settimeout(10)
        with suppress(ConnectionError):  # the server hangs up before it has read all of it
            stranger.sendall(garbage)
        store = client(server)
        store.set("key", "value")
        assert store.get("key") == b"value"


def test_more_strangers_than_places_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_STRANGERS", 2)
    server = StoreServer("127.0.0.1", 0, SECRET)
    strangers = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(2)]
    for stranger in strangers:
        assert stranger.recv(49, socket.MSG_WAITALL).startswith(b"paceline store")  # they have a place now
    with socket.create_connection(("127.0.0.1", server.port), 10) as third:
        assert third.recv(1) == b""
    strangers.pop().close()
    client(server).set("key", "value")  # tries again until there is a place
    strangers.pop().close()
    server.close()


def test_requests_of_a_wrong_type_end_the_connection(server: StoreServer) -> None:
    for message in (b"", b"\xc1", module._encoder.encode(["eval", ["key"]]), module._encoder.encode(["add", []])):
        store = client(server)
        store._channel.send(message)
        with pytest.raises((EOFError, ConnectionError)):
            store._channel.receive(10)
    assert client(server).check(["key"]) is False


@contextmanager
def channels() -> Iterator[tuple[AuthenticatedChannel, socket.socket, socket.socket, AuthenticatedChannel]]:
    """Yield two ends of a connection, and the sockets of somebody between them."""
    left, left_inner = socket.socketpair()
    right, right_inner = socket.socketpair()
    with left, left_inner, right, right_inner:
        key = new_secret()
        yield (
            AuthenticatedChannel(left, key=key, is_server=False),
            left_inner,
            right_inner,
            AuthenticatedChannel(right, key=key, is_server=True),
        )


def test_a_channel_carries_messages() -> None:
    with channels() as (sender, inner, outer, receiver):
        for message in (b"", b"one", b"x" * 1000):
            sender.send(message)
            outer.sendall(inner.recv(10_000))
            assert receiver.receive(10) == message


@pytest.mark.parametrize("place", [4, 6, 10, -1])
def test_a_changed_message_is_refused(place: int) -> None:
    with channels() as (sender, inner, outer, receiver):
        sender.send(b"a message")
        data = bytearray(inner.recv(1000))
        data[place] ^= 1
        outer.sendall(data)
        with pytest.raises(ChannelError, match="changed on the way"):
            receiver.receive(10)


def test_a_repeated_message_is_refused() -> None:
    with channels() as (sender, inner, outer, receiver):
        sender.send(b"a message")
        data = inner.recv(1000)
        outer.sendall(data + data)
        assert receiver.receive(10) == b"a message"
        with pytest.raises(ChannelError, match="changed on the way"):
            receiver.receive(10)


def test_a_returned_message_is_refused() -> None:
    with channels() as (sender, inner, _, _receiver):
        sender.send(b"a message")
        inner.sendall(inner.recv(1000))
        with pytest.raises(ChannelError, match="changed on the way"):
            sender.receive(10)


def test_long_messages_are_refused_on_both_sides() -> None:
    with channels() as (sender, _, outer, receiver):
        with pytest.raises(ChannelError, match="a message of 16 MiB is longer than 16 MiB"):
            sender.send(bytes((16 << 20) + 1))
        outer.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ChannelError, match="it sent a message of 4294967295 bytes"):
            receiver.receive(10)


def test_the_server_listens_at_its_address_only() -> None:
    server = StoreServer("127.0.0.1", 0, SECRET)
    assert server._listener.getsockname() == ("127.0.0.1", server.port)
    server.close()


def test_a_server_ends_with_its_last_reference() -> None:
    store = open_store("127.0.0.1", 0, SECRET, timeout_s=10)
    port = store.port
    store.set("key", "value")
    del store
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 10)


def test_nobody_listens() -> None:
    with pytest.raises(OSError, match="refused"):
        AuthenticatedStore("127.0.0.1", free_port(), SECRET, timeout_s=0.1)


# Gloo's own connections.


class Crossed:
    """A process group whose connection to one peer belongs to a stranger."""

    def __init__(self, received: torch.Tensor) -> None:
        self._received = received

    def alltoall_base(self, output: torch.Tensor, *_: Any) -> Any:
        output.copy_(self._received)
        return self

    def wait(self) -> None: ...


@pytest.mark.parametrize("stranger", ["zeros", "the key", "returned", "another key"])
def test_a_process_without_the_store_cannot_take_a_workers_place(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, stranger: str
) -> None:
    own, peers = bytes(32), b"k" * 32
    monkeypatch.setattr(greeting_module.secrets, "token_bytes", lambda _: own)
    store = client(server)
    store.set("1", peers)
    greet = greeting_module.greeting

    def check(block: bytes) -> None:
        received = torch.frombuffer(bytearray(greet(own, 0, 0) + block), dtype=torch.uint8)
        greeting_module.check_peers(Crossed(received), store, 0, [3, 7])

    check(greet(peers, 1, 0))
    blocks = {"zeros": bytes(32), "the key": peers, "returned": greet(own, 0, 1), "another key": greet(b"s" * 32, 1, 0)}
    with pytest.raises(CommError, match="connected to worker 3 as worker 7 does not belong to this run"):
        check(blocks[stranger])


def test_process_groups_connect_through_it(server: StoreServer) -> None:
    sums = {}
    stores = [client(server) for _ in range(3)]

    def work(rank: int) -> None:
        comm = TorchComm(rank, 3, prefix_store("job", stores[rank]), timeout_s=20, address="127.0.0.1")
        tensor = torch.tensor([float(rank)])
        comm.all_reduce(tensor)
        sums[rank] = tensor.item()
        comm.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sums == {0: 3.0, 1: 3.0, 2: 3.0}


def test_a_group_without_its_peers_is_a_timeout(server: StoreServer) -> None:
    store = client(server, timeout_s=0.5)
    with pytest.raises(RuntimeError, match="timeout"):
        TorchComm(0, 2, prefix_store("job", store), timeout_s=0.5, address="127.0.0.1")
