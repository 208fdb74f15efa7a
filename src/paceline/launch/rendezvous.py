"""Rendezvous: connects the worker processes of a task through a key-value store, and exchanges values through it.

Each task uses its own key prefix, so that tasks can share a store. A comm is the transport between workers; see
`paceline.comm`.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from paceline.comm import Comm, CommConfig, comms
from paceline.comm.torch import prefix_store
from paceline.errors import RunError
from paceline.launch.base import Task
from paceline.launch.messages import MAX_MESSAGE_BYTES, MessageError, decode, encode
from paceline.limits import Limits
from paceline.train.context import Context, Event
from paceline.worker_activity import ACTIVITY

CHUNK_BYTES = 4 << 20  # size of the largest value in the store; larger values are split


@dataclass(frozen=True, kw_only=True)
class TaskSlot:
    """Position of a process in a task: the task's number in the pool, and the process's ranks, host and address."""

    job: int
    rank: int
    local_rank: int
    node: str
    address: str


@contextmanager
def joined_task(task: Task, store: Any, slot: TaskSlot, emit: Callable[[Event], None]) -> Iterator[Context]:
    """Connect this process to its peers for one task, and yield the context for the task's function.

    When the `with` block ends without an error, workers wait for each other, and the connections are closed.
    """
    ACTIVITY.enter("rendezvous")
    comm, wide = _connect(task, store, slot)
    numbers = itertools.count(1)

    def connect_another(name: str) -> Comm:
        prefixed = prefix_store(f"more{next(numbers)}", store)
        return _connect(replace(task, comm=name, num_servers=0), prefixed, slot)[0]

    yield Context(comm, _device_for(task, slot.local_rank), emit, connect_another, wide)
    if slot.rank < task.num_workers:
        comm.barrier()  # a slower worker may still use its connections; servers are not part of this comm
        comm.close()
    if wide is not None:
        wide.close()


def _connect(task: Task, store: Any, slot: TaskSlot) -> tuple[Comm, Comm | None]:
    """Open the comm of a task's workers and, if the task has servers, a second comm of workers and servers.

    Return both comms. Without servers, the second is None. A server is not part of the workers' comm, so on a server
    the second comm is returned twice.
    """
    kind = comms.get(task.comm)

    def join(prefix: str, world_size: int) -> Comm:
        return kind.connect(
            CommConfig(
                rank=slot.rank,
                world_size=world_size,
                store=prefix_store(prefix, store),
                node=slot.node,
                local_rank=slot.local_rank,
                timeout_s=Limits(task.timeout_s).operation_s,
                address=slot.address,
                device=task.device,
            )
        )

    own = join(f"job{slot.job}", task.num_workers) if slot.rank < task.num_workers else None
    wide = join(f"job{slot.job}/wide", task.num_processes) if task.num_servers else None
    comm = own or wide
    assert comm is not None
    return comm, wide


def _device_for(task: Task, local_rank: int) -> torch.device:
    if task.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def address_towards(host: str, port: int) -> str:
    """Return the address of the local network interface that packets to `host` would use. Nothing is sent."""
    try:
        resolved = socket.gethostbyname(host)
    except OSError as error:
        raise RunError(
            f"master address {host!r} cannot be resolved: {error}; use an IP address or a name that this host resolves"
        ) from None
    if resolved.startswith("127."):
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((resolved, port))
        return str(probe.getsockname()[0])


def publish(store: Any, key: str, value: Any) -> None:
    """Write a value to a store under a key, in chunks. Raises RunError if it is larger than MAX_MESSAGE_BYTES.

    The value consists of numbers, text, lists and dicts. Arrays and tensors become lists.
    """
    data = encode(value)
    if len(data) > MAX_MESSAGE_BYTES:
        raise RunError(f"{key} has {len(data) >> 20} MiB; at most {MAX_MESSAGE_BYTES >> 20} MiB can be sent")
    chunks = [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]
    for index, chunk in enumerate(chunks):
        store.set(f"{key}/{index}", chunk)
    store.set(key, str(len(chunks)))


def collect(store: Any, key: str) -> Any:
    """Wait until a peer has called `publish` with this key, and return the value.

    Raises RunError if the value is malformed, and RuntimeError if the store's timeout expires.
    """
    text = bytes(store.get(key))
    if not text.isdigit() or len(text) > 9 or int(text) > MAX_MESSAGE_BYTES // CHUNK_BYTES:
        raise RunError(f"{key} in the rendezvous store is not a message of a worker: {text[:40]!r}")
    chunks = [store.get(f"{key}/{index}") for index in range(int(text))]
    if any(len(chunk) > CHUNK_BYTES for chunk in chunks):
        raise RunError(f"{key} in the rendezvous store has a chunk of more than {CHUNK_BYTES >> 20} MiB")
    try:
        return decode(b"".join(chunks))
    except MessageError as error:
        raise RunError(f"{key} in the rendezvous store is {error}") from None


def leave(store: Any, key: str, *, is_host: bool, num_others: int) -> None:
    """Report that this process no longer uses a store. The process that hosts the store waits for these reports.

    The host (`is_host`) waits until all `num_others` other processes have reported, or the store's timeout has expired.
    `key` is a prefix that all processes share.
    """
    if not is_host:
        if store.add(f"{key}/left", 1) == num_others:
            store.set(f"{key}/all left", "1")
    elif num_others:
        with suppress(RuntimeError):  # timeout: a process that died never reports
            store.get(f"{key}/all left")
