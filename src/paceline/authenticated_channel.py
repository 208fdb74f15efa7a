"""TCP connections between two processes that share a secret: each proves to the other that it knows the secret.

The secret itself is never sent. The server sends a random number; the client answers with a random number of its own
and an HMAC of both; the server replies with another HMAC of both. From then on each message carries an HMAC of its
content and its position, so that nobody on the way can change, repeat or insert a message. Messages are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from typing import Self

SECRET_BYTES = 32
MOST_MESSAGE_BYTES = 16 << 20  # longer than any value that workers exchange in one piece
HANDSHAKE_S = 10.0  # longest wait for the next part of a handshake
_GREETING = b"paceline store 1\n"
_NONCE_BYTES, _MAC_BYTES = 32, 32
_ACCEPTED, _REFUSED = b"\x01", b"\x00"
_LENGTH = struct.Struct(">I")
_POSITION = struct.Struct(">Q")


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class ChannelError(OSError):
    """Raised if the other side is not a process of this run, or if a message was changed on the way."""


class WrongSecret(ChannelError):
    """Raised if the other side has another secret."""


class AuthenticatedChannel:
    """A connection over which two processes with the same secret exchange messages. Not for several threads at once."""

    def __init__(self, connection: socket.socket, *, key: bytes, is_server: bool) -> None:
        """Use a connection whose handshake is done. `key` is the secret of this connection alone."""
        ours, theirs = (b"server", b"client") if is_server else (b"client", b"server")
        self._socket = connection
        self._sent_key, self._received_key = _mac(key, ours), _mac(key, theirs)
        self._num_sent = self._num_received = 0

    @classmethod
    def connect(cls, connection: socket.socket, secret: bytes) -> Self:
        """Do the client's part of the handshake.

        Raises WrongSecret if one side refuses the other's proof, and OSError if the connection fails.
        """
        connection.settimeout(HANDSHAKE_S)
        if _receive(connection, len(_GREETING)) != _GREETING:
            raise ChannelError("it is not a rendezvous of paceline, or of another version")
        nonces = _receive(connection, _NONCE_BYTES) + secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(nonces[_NONCE_BYTES:] + _mac(secret, b"client", nonces))
        if _receive(connection, 1) != _ACCEPTED:
            raise WrongSecret("it has another secret")
        if not hmac.compare_digest(_receive(connection, _MAC_BYTES), _mac(secret, b"server", nonces)):
            raise WrongSecret("it does not know the secret")
        return cls(connection, key=_mac(secret, b"key", nonces), is_server=False)

    @classmethod
    def accept(cls, connection: socket.socket, secret: bytes) -> Self:
        """Do the server's part of the handshake.

        Raises WrongSecret if the client does not know the secret; `refuse` then says so to the client.
        """
        connection.settimeout(HANDSHAKE_S)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_GREETING + nonce)
        answer = _receive(connection, _NONCE_BYTES + _MAC_BYTES)
        nonces = nonce + answer[:_NONCE_BYTES]
        if not hmac.compare_digest(answer[_NONCE_BYTES:], _mac(secret, b"client", nonces)):
            raise WrongSecret("it does not know the secret")
        connection.sendall(_ACCEPTED + _mac(secret, b"server", nonces))
        return cls(connection, key=_mac(secret, b"key", nonces), is_server=True)

    @staticmethod
    def refuse(connection: socket.socket) -> None:
        connection.sendall(_REFUSED)

    def send(self, message: bytes) -> None:
        if len(message) > MOST_MESSAGE_BYTES:
            raise ChannelError(f"a message of {len(message) >> 20} MiB is longer than {MOST_MESSAGE_BYTES >> 20} MiB")
        seal = _mac(self._sent_key, _POSITION.pack(self._num_sent), message)
        self._num_sent += 1
        self._socket.sendall(_LENGTH.pack(len(message)) + message + seal)

    def receive(self, timeout_s: float | None) -> bytes:
        """Return the next message. Raises TimeoutError if it does not come in time, and EOFError at the end."""
        self._socket.settimeout(timeout_s)
        (length,) = _LENGTH.unpack(_receive(self._socket, _LENGTH.size))
        if length > MOST_MESSAGE_BYTES:
            raise ChannelError(f"it sent a message of {length} bytes")
        data = _receive(self._socket, length + _MAC_BYTES)
        message = data[:length]
        if not hmac.compare_digest(
            data[length:], _mac(self._received_key, _POSITION.pack(self._num_received), message)
        ):
            raise ChannelError("a message was changed on the way")
        self._num_received += 1
        return message

    def close(self) -> None:
        self._socket.close()


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Return an HMAC of parts, each of which is either of fixed length or the last one."""
    return hmac.digest(key, b"".join(parts), "sha256")


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    data = bytearray()
    while len(data) < num_bytes:
        piece = connection.recv(min(num_bytes - len(data), 1 << 20))
        if not piece:
            raise EOFError("the connection is closed")
        data += piece
    return bytes(data)
