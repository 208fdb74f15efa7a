"""Secrets for workers that the user starts on several hosts: a token file, or a secret of this user on this host."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from paceline.authenticated_channel import new_secret
from paceline.errors import UsageError

LEAST_BYTES, MOST_BYTES = 16, 1 << 16
OWN_TOKEN = "~/.cache/paceline/token"


def secret_from(token_file: str, address: str) -> bytes:
    """Return the secret that the commands on all hosts share. `address` is the one of host 0.

    It is derived from the token file. Without one, commands that meet at an address of this host use a secret that only
    this user can read. Raises UsageError if the file is unsuitable, or if other hosts take part without a token file.
    """
    if token_file:
        return _secret_of(_read_token(token_file))
    if not is_loopback(address):
        raise UsageError(
            f"workers of several hosts need a shared secret, so that no other host can join at {address}: create one "
            "with `(umask 077; openssl rand -hex 32 > token)`, copy it to all hosts and add --token-file token"
        )
    return _secret_of(_own_token())


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this host, and only processes of this host can connect to it."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _secret_of(token: bytes) -> bytes:
    return hashlib.sha256(b"paceline token\n" + token).digest()


def _read_token(name: str) -> bytes:
    """Return the content of a token file, without white space around it."""
    try:
        with open(Path(name).expanduser(), "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            token = file.read(MOST_BYTES + 1).strip() if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--token-file {name!r} cannot be read: {reason}") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise UsageError(
            f"--token-file {name!r} can be read or written by other users; run `chmod 600` on a file of your own"
        )
    if not LEAST_BYTES <= len(token) <= MOST_BYTES:
        raise UsageError(
            f"--token-file {name!r} must have {LEAST_BYTES} to {MOST_BYTES} bytes, not {len(token)}; create one with "
            "`(umask 077; openssl rand -hex 32 > token)`"
        )
    return token


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for its writer


def _own_token() -> bytes:
    """Return the secret of this user on this host. It is created when it is first needed."""
    path = Path(OWN_TOKEN).expanduser()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        candidate = path.with_name(f".{path.name}.{os.getpid()}.{socket.gethostname()}")
        descriptor = os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(new_secret().hex().encode())
        with suppress(FileExistsError):  # another command was faster
            os.link(candidate, path)
        candidate.unlink()
    return _read_token(str(path))
