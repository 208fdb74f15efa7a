"""Greetings by which workers recognise each other over new connections of gloo."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Any

import torch

from paceline.comm.base import CommError

KEY_BYTES = 32  # of the key with which a worker greets its peers, and of a greeting


def check_peers(group: Any, store: Any, rank: int, names: Sequence[int]) -> None:
    """Raise CommError unless the peer at the other end of each connection of a gloo group can also write the store.

    Gloo accepts whoever connects first. Here each worker puts a random key into the store and sends every peer an HMAC
    made with it, so that a process that cannot read the store cannot take a worker's place.
    """
    own = secrets.token_bytes(KEY_BYTES)
    store.set(str(rank), own)
    sent = bytearray(b"".join(greeting(own, rank, peer) for peer in range(len(names))))
    received = torch.zeros(len(sent), dtype=torch.uint8)
    group.alltoall_base(received, torch.frombuffer(sent, dtype=torch.uint8), [], []).wait()
    blocks = received.numpy().tobytes()
    for peer, key in enumerate(_get_all(store, [str(peer) for peer in range(len(names))])):
        block = blocks[peer * KEY_BYTES : (peer + 1) * KEY_BYTES]
        if not hmac.compare_digest(block, greeting(key, peer, rank)):
            raise CommError(
                f"the process that connected to worker {names[rank]} as worker {names[peer]} does not belong to "
                "this run; start the run again"
            )


def _get_all(store: Any, keys: Sequence[str]) -> list[bytes]:
    """Wait for keys of a store, and return their values. Stores that can do so answer one request for all of them."""
    return [bytes(value) for value in (store.multi_get(keys) if store.has_extended_api() else map(store.get, keys))]


def greeting(key: bytes, sender: int, receiver: int) -> bytes:
    return hmac.digest(key, f"{sender} to {receiver}".encode(), "sha256")
