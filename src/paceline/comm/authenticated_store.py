"""The rendezvous store: a small key-value server that answers only processes that know a secret.

It takes the place of torch's TCPStore, which anybody who reaches its port can read and write. Through the store,
workers find each other's addresses and the tokens by which they recognise each other (`torch.py`, `shm_memory.py`).
Torch's process groups accept any subclass of `torch.distributed.Store`.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import msgspec
import torch.distributed as dist

from paceline.authenticated_channel import SECRET_BYTES, AuthenticatedChannel, ChannelError, WrongSecret

MOST_STRANGERS = 256  # connections whose handshake is not finished; more are closed at once
ANSWER_S = 30.0  # how much longer than the time limit of a request a client waits for the server's answer
RETRY_S = 0.05  # pause between two attempts to reach a server that does not listen yet
_LONGEST_S = 1e6


class _Request(msgspec.Struct, frozen=True, array_like=True):
    """A request of a client. `get` and `wait` are answered when all keys are set, or after `timeout_s`."""

    op: Literal["set", "append", "get", "add", "wait", "check", "delete_key", "compare_set"]
    keys: list[str]
    values: list[bytes] = []
    number: int = 0
    timeout_s: float = 0.0


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """An answer of the server: the values of keys, a number (`add`, `check`, `delete_key`), or that time is up."""

    is_late: bool = False
    values: list[bytes] = []
    number: int = 0


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(_Request)
_answers = msgspec.msgpack.Decoder(_Answer)


class _Values:
    """The keys and values of a store, shared by the threads that serve its clients."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def answer(self, request: _Request) -> _Answer:
        with self._changed:
            match request.op:
                case "set":
                    self._values.update(zip(request.keys, request.values, strict=True))
                    self._changed.notify_all()
                case "append":
                    for key, value in zip(request.keys, request.values, strict=True):
                        self._values[key] = self._values.get(key, b"") + value
                    self._changed.notify_all()
                case "add":
                    (key,) = request.keys
                    total = int(self._values.get(key, b"0")) + request.number
                    self._values[key] = str(total).encode()
                    self._changed.notify_all()
                    return _Answer(number=total)
                case "compare_set":
                    (key,), (expected, desired) = request.keys, request.values
                    current = self._values.get(key, expected)
                    if current == expected and (key in self._values or not expected):
                        self._values[key] = current = desired
                        self._changed.notify_all()
                    return _Answer(values=[current])
                case "check":
                    return _Answer(number=int(all(key in self._values for key in request.keys)))
                case "delete_key":
                    return _Answer(number=sum(self._values.pop(key, None) is not None for key in request.keys))
                case "get" | "wait":
                    limit = min(max(request.timeout_s, 0.0), _LONGEST_S)
                    if not self._changed.wait_for(lambda: all(key in self._values for key in request.keys), limit):
                        return _Answer(is_late=True)
                    if request.op == "get":
                        return _Answer(values=[self._values[key] for key in request.keys])
        return _Answer()


class StoreServer:
    """Serves a store at one address, to processes that know `secret`, until it is closed or no longer referred to."""

    def __init__(self, address: str, port: int, secret: bytes) -> None:
        """Listen at `address` only; port 0 selects a free port. Raises OSError if that is not possible."""
        assert len(secret) >= SECRET_BYTES, "the secret is too short"
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(where[:2], family=family, backlog=MOST_STRANGERS)
        self.port: int = self._listener.getsockname()[1]
        # Addresses of those who had another secret, for error messages.
        self.refused: deque[str] = deque(maxlen=20)
        gate = _Gate(self._listener, secret, self.refused)
        threading.Thread(target=gate.serve, daemon=True, name=f"paceline-store-{self.port}").start()
        self.close = weakref.finalize(self, _stop_listening, self._listener)


class _Gate:
    """Accepts connections, and answers those whose handshake succeeds; each has a thread of its own."""

    def __init__(self, listener: socket.socket, secret: bytes, refused: deque[str]) -> None:
        self._listener, self._secret, self._refused = listener, secret, refused
        self._values = _Values()
        self._places = threading.BoundedSemaphore(MOST_STRANGERS)

    def serve(self) -> None:
        while True:
            try:
                connection, (address, *_) = self._listener.accept()
            except OSError:
                return  # the server was closed
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._welcome, args=(connection, address), daemon=True).start()
            else:
                connection.close()

    def _welcome(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel = AuthenticatedChannel.accept(connection, self._secret)
            except WrongSecret:
                self._refused.append(address)
                with suppress(OSError):
                    AuthenticatedChannel.refuse(connection)
                return
            except (OSError, EOFError):
                return  # a stranger, or a client that ended
            finally:
                self._places.release()
            # The client ended, or sent something that is no request.
            with suppress(OSError, EOFError, ValueError, LookupError, ArithmeticError):
                while True:
                    request = _requests.decode(channel.receive(None))
                    channel.send(_encoder.encode(self._values.answer(request)))


def _stop_listening(listener: socket.socket) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # ends the thread that waits in accept
    listener.close()


class AuthenticatedStore(dist.Store):  # type: ignore[name-defined,misc]
    """A client of a StoreServer. Torch's code calls its methods too; keep a reference to it while torch uses it."""

    def __init__(
        self, host: str, port: int, secret: bytes, *, timeout_s: float, server: StoreServer | None = None
    ) -> None:
        """Connect to a server, which may start later but must listen within `timeout_s`.

        `server` is the server itself if it is in this process: it then lives as long as this client. Raises WrongSecret
        if the server has another secret, and OSError if it cannot be reached.
        """
        super().__init__()
        super().set_timeout(timedelta(seconds=timeout_s))
        self.port, self.server = port, server
        self._host, self._secret, self._timeout_s = host, secret, timeout_s
        self._channel = _connect(host, port, secret, timeout_s)
        self._lock = threading.Lock()
        self._clones: list[AuthenticatedStore] = []
        self.close = weakref.finalize(self, self._channel.close)

    def set(self, key: str, value: bytes | str) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def append(self, key: str, value: bytes | str) -> None:
        self._ask(_Request("append", [key], [_as_bytes(value)]))

    def multi_set(self, keys: list[str], values: list[bytes | str]) -> None:
        self._ask(_Request("set", list(keys), [_as_bytes(value) for value in values]))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._ask(_Request("get", list(keys), timeout_s=self._timeout_s)).values

    def has_extended_api(self) -> bool:
        return True  # torch then gets the addresses of all peers with one request

    def add(self, key: str, number: int) -> int:
        return self._ask(_Request("add", [key], number=number)).number

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        limit_s = self._timeout_s if timeout is None else timeout.total_seconds()
        self._ask(_Request("wait", list(keys), timeout_s=limit_s))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask(_Request("check", list(keys))).number)

    def delete_key(self, key: str) -> bool:
        return bool(self._ask(_Request("delete_key", [key])).number)

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        values = [_as_bytes(expected), _as_bytes(desired)]
        return self._ask(_Request("compare_set", [key], values)).values[0]

    def clone(self) -> AuthenticatedStore:
        clone = AuthenticatedStore(self._host, self.port, self._secret, timeout_s=self._timeout_s, server=self.server)
        self._clones.append(clone)  # torch keeps only its own part of a store alive
        return clone

    def _ask(self, request: _Request) -> _Answer:
        try:
            with self._lock:
                try:
                    self._channel.send(_encoder.encode(request))
                    answer = _answers.decode(self._channel.receive(request.timeout_s + ANSWER_S))
                except BaseException:  # also Ctrl-C: the next request must not read the answer to this one
                    self._channel.close()
                    raise
        except (OSError, EOFError, ValueError) as error:
            raise dist.DistNetworkError(f"the rendezvous store at {self._host}:{self.port} is gone: {error}") from None
        if answer.is_late:
            raise dist.DistStoreError(f"timeout: {', '.join(request.keys)} was not set within {request.timeout_s:g} s")
        return answer


def _as_bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _connect(host: str, port: int, secret: bytes, timeout_s: float) -> AuthenticatedChannel:
    """Connect to a server. Try again until the time limit if nobody listens yet, but not after a wrong secret."""
    deadline = time.monotonic() + timeout_s
    while True:
        connection: socket.socket | None = None
        try:
            connection = socket.create_connection((host, port), max(deadline - time.monotonic(), 0.1))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return AuthenticatedChannel.connect(connection, secret)
        except (OSError, EOFError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, ChannelError) or time.monotonic() > deadline:
                raise error if isinstance(error, OSError) else ConnectionResetError(str(error)) from None
        time.sleep(RETRY_S)


def open_store(address: str, port: int, secret: bytes, *, timeout_s: float) -> AuthenticatedStore:
    """Open a server at `address` in this process, and return a client of it. Port 0 selects a free port."""
    server = StoreServer(address, port, secret)
    return AuthenticatedStore(address, server.port, secret, timeout_s=timeout_s, server=server)
