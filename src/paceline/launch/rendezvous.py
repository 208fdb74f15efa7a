"""How workers find each other: one store per world, with a prefix of its own for every task."""

from __future__ import annotations

import itertools
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from paceline.comm import Comm, CommConfig, comms
from paceline.comm.torch import prefix_store
from paceline.errors import RunError
from paceline.launch.base import Task
from paceline.launch.messages import MAX_MESSAGE_BYTES, MessageError, decode, encode

CHUNK_BYTES = 4 << 20  # a store's value is one message; large results travel in several


@dataclass(frozen=True, kw_only=True)
class TaskSlot:
    """A process's place in a task: which job of the pool, its ranks, and where others reach it."""

    job: int
    rank: int
    local_rank: int
    node: str
    address: str


def connect(task: Task, store: Any, seat: TaskSlot) -> tuple[Comm, Comm | None]:
    """Fresh comms for one task: one of the workers, and a wide one that includes the servers, if there are any.

    A server is not in the comm of the workers: it gets the wide one twice.
    """
    kind = comms.get(task.comm)

    def join(corner: str, world_size: int) -> Comm:
        return kind.connect(
            CommConfig(
                rank=seat.rank,
                world_size=world_size,
                store=prefix_store(corner, store),
                node=seat.node,
                local_rank=seat.local_rank,
                timeout_s=task.timeout_s,
                address=seat.address,
                device=task.device,
            )
        )

    own = join(f"job{seat.job}", task.num_workers) if seat.rank < task.num_workers else None
    wide = join(f"job{seat.job}/wide", task.num_processes) if task.num_servers else None
    comm = own or wide
    assert comm is not None
    return comm, wide


def part(task: Task, rank: int, comm: Comm, wide: Comm | None) -> None:
    """Close a task's comms; workers wait for each other, so that none closes a connection that another still uses.

    A server does not wait for workers that have parted from it.
    """
    if rank < task.num_workers:
        comm.barrier()
        comm.close()
    if wide is not None:
        wide.close()


class MoreComms:
    """Opens further comms for a task, each with its own prefix in the store."""

    def __init__(self, task: Task, store: Any, seat: TaskSlot) -> None:
        self._task, self._store, self._seat = task, store, seat
        self._numbers = itertools.count(1)

    def connect(self, name: str) -> Comm:
        corner = prefix_store(f"more{next(self._numbers)}", self._store)
        comm, _ = connect(replace(self._task, comm=name, num_servers=0), corner, self._seat)
        return comm


def device_for(task: Task, local_rank: int) -> torch.device:
    if task.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def address_towards(host: str, port: int) -> str:
    """The local address that reaches a host; nothing is sent."""
    try:
        resolved = socket.gethostbyname(host)
    except OSError as error:
        raise RunError(f"master address {host!r} cannot be resolved: {error}") from None
    if resolved.startswith("127."):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((resolved, port))
        return str(probe.getsockname()[0])


def publish(store: Any, key: str, value: Any) -> None:
    """Put plain values into a store."""
    data = encode(value)
    if len(data) > MAX_MESSAGE_BYTES:
        raise RunError(f"{key} has {len(data) >> 20} MiB; at most {MAX_MESSAGE_BYTES >> 20} MiB can be sent")
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    for index, chunk in enumerate(chunks):
        store.set(f"{key}/{index}", chunk)
    store.set(key, str(len(chunks)))


def collect(store: Any, key: str) -> Any:
    """Wait for plain values that a peer published, and check them."""
    text = bytes(store.get(key))
    if not text.isdigit() or len(text) > 9 or int(text) > MAX_MESSAGE_BYTES // CHUNK_BYTES:
        raise RunError(f"{key} in the store of all workers is not a message of theirs: {text[:40]!r}")
    chunks = [store.get(f"{key}/{index}") for index in range(int(text))]
    if any(len(chunk) > CHUNK_BYTES for chunk in chunks):
        raise RunError(f"{key} in the store of all workers has a piece of more than {CHUNK_BYTES >> 20} MiB")
    try:
        return decode(b"".join(chunks))
    except MessageError as error:
        raise RunError(f"{key} in the store of all workers is {error}") from None


def leave(store: Any, key: str, *, is_host: bool, num_others: int) -> None:
    """Stop using a store; the process that hosts it waits for the others."""
    if not is_host:
        if store.add(f"{key}/left", 1) == num_others:
            store.set(f"{key}/all left", "1")
    elif num_others:
        with suppress(RuntimeError):  # one that died needs no store
            store.get(f"{key}/all left")
