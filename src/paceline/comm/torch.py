"""Comm `torch`: torch.distributed's gloo for CPU tensors, and nccl if every worker has its own GPU.

This module also wraps the parts of torch.distributed that other packages use: rendezvous stores and process groups.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.base import Comm, CommConfig, CommError
from paceline.comm.collectives import Work
from paceline.comm.greeting import check_peers
from paceline.comm.listener import BackgroundWork, LaunchedGroup, OpenOperation
from paceline.worker_activity import ACTIVITY

Store = Any  # torch.distributed.Store; its stubs are not exported


class TorchComm(Comm):
    """Connects workers by gloo. CUDA tensors use nccl if requested; otherwise they are copied through host memory."""

    name: ClassVar[str] = "torch"

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        *,
        timeout_s: float = 60.0,
        address: str = "",
        use_nccl: bool = False,
        names: Sequence[int] = (),
    ) -> None:
        """Connect this worker to its peers.

        `address` is the local address that peers connect to; if it is empty, gloo chooses an address. `names` has the
        ranks to show in error messages, if this comm connects only some workers of a job.
        """
        super().__init__(rank, world_size)
        self._names = names or range(world_size)
        self._timeout_s = timeout_s
        self._gloo = _make_gloo(dist.PrefixStore("gloo", store), rank, world_size, timeout_s, address)
        if world_size > 1:
            check_peers(self._gloo, prefix_store("greeting", store), rank, self._names)
        self._nccl: Any = None
        if use_nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=timeout_s)
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, world_size, options)

    @classmethod
    def connect(cls, config: CommConfig) -> TorchComm:
        return cls(
            config.rank,
            config.world_size,
            config.store,
            timeout_s=config.timeout_s,
            address="127.0.0.1" if config.world_size == 1 else config.address,
            use_nccl=config.device == "cuda" and _has_gpu_for_each(config),
        )

    def process_group(self) -> Any:
        return CountedGroup(self, self._nccl or self._gloo)

    def close(self) -> None:
        if self._nccl is not None:
            self._nccl.shutdown()
        self._nccl = self._gloo = None

    @classmethod
    def wire_factors(cls, op: str, peer: int | None, rank: int, world_size: int) -> tuple[float, float]:
        """Return how many bytes gloo sends and receives on this worker, per byte of the tensor.

        Gloo's all-reduce is a ring, and its broadcast is a binomial tree.
        """
        if op == "all_reduce":
            share = 2 * (world_size - 1) / world_size
            return share, share
        if op == "broadcast":
            return len(_children(peer or 0, rank, world_size)), float(rank != (peer or 0))
        return super().wire_factors(op, peer, rank, world_size)

    @classmethod
    def sent_to(cls, op: str, peer: int | None, rank: int, world_size: int) -> dict[int, float]:
        sent, _ = cls.wire_factors(op, peer, rank, world_size)
        if op in ("all_reduce", "all_gather") and sent:
            step = -1 if op == "all_reduce" else 1  # gloo's direction around the ring
            return {(rank + step) % world_size: sent}
        if op == "broadcast":
            return dict.fromkeys(_children(peer or 0, rank, world_size), 1.0)
        return super().sent_to(op, peer, rank, world_size)

    def _isend(self, tensor: Tensor, peer: int, tag: int) -> Work:
        group, staged = self._group_for(tensor, copy_in=True)
        return self._start(f"send to worker {self._names[peer]}", lambda: group.send([staged], peer, tag))

    def _irecv(self, tensor: Tensor, peer: int, tag: int) -> Work:
        group, staged = self._group_for(tensor, copy_in=False)
        what = f"receive from worker {self._names[peer]}"
        return self._start(what, lambda: group.recv([staged], peer, tag), _copy_back(staged, tensor))

    def _recv_any(self, tensor: Tensor, tag: int) -> int:
        staged = tensor.cpu() if tensor.is_cuda else tensor
        try:
            work = self._gloo.recv_anysource([staged], tag)
            wait_for_peers(work, timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise self._error("receive from any worker", error) from error
        if staged is not tensor:
            tensor.copy_(staged)
        return int(work._source_rank())

    def _all_reduce(self, tensor: Tensor) -> None:
        self._iall_reduce(tensor).wait()

    def _iall_reduce(self, tensor: Tensor) -> Work:
        group, staged = self._group_for(tensor, copy_in=True)
        return self._start(
            "all_reduce", lambda: group.allreduce([staged]), _copy_back(staged, tensor), kind=_Collective
        )

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        group, staged = self._group_for(tensor, copy_in=True)
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._start("broadcast", lambda: group.broadcast([staged], options), _copy_back(staged, tensor)).wait()

    def _gather(self, tensor: Tensor, root: int) -> list[Tensor]:
        if tensor.is_cuda:
            return super()._gather(tensor, root)
        pieces = [torch.empty_like(tensor) for _ in range(self.world_size)] if self.rank == root else []
        options = dist.GatherOptions()
        options.rootRank = root
        outputs = [pieces] if pieces else []
        self._start("gather", lambda: self._gloo.gather(outputs, [tensor], options)).wait()
        return pieces

    def _scatter(self, tensor: Tensor, pieces: list[Tensor], root: int) -> None:
        if tensor.is_cuda:
            super()._scatter(tensor, pieces, root)
            return
        options = dist.ScatterOptions()
        options.rootRank = root
        inputs = [pieces] if self.rank == root else []
        self._start("scatter", lambda: self._gloo.scatter([tensor], inputs, options)).wait()

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        if tensor.is_cuda:
            return super()._all_gather(tensor)
        pieces = [torch.empty_like(tensor) for _ in range(self.world_size)]
        self._start("all_gather", lambda: self._gloo.allgather([pieces], [tensor])).wait()
        return pieces

    def _group_for(self, tensor: Tensor, *, copy_in: bool) -> tuple[Any, Tensor]:
        if not tensor.is_cuda:
            return self._gloo, tensor
        if self._nccl is not None:
            return self._nccl, tensor
        return self._gloo, tensor.cpu() if copy_in else torch.empty_like(tensor, device="cpu")

    def _start(
        self,
        what: str,
        start: Callable[[], Any],
        after: Callable[[], object] | None = None,
        *,
        kind: type[_TorchWork] | None = None,
    ) -> Work:
        try:
            return (kind or _TorchWork)(self, what, start(), after)
        except RuntimeError as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: RuntimeError) -> CommError:
        reason = str(error).splitlines()[0]
        me = self._names[self.rank]
        return CommError(f"worker {me}: {what} failed (time limit {self._timeout_s:g} s): {reason}")


class _TorchWork:
    """A message or collective of torch in progress. `wait` raises CommError on failure or after the time limit.

    For a CUDA tensor that was sent through host memory, `wait` also copies the result back to the device.
    """

    def __init__(self, comm: TorchComm, what: str, work: Any, after: Callable[[], object] | None) -> None:
        self._comm, self._what, self._work, self._after = comm, what, work, after

    def wait(self) -> None:
        try:
            wait_for_peers(self._work, timedelta(seconds=self._comm._timeout_s))
        except RuntimeError as error:
            raise self._comm._error(self._what, error) from error
        if self._after is not None:
            self._after()


class _Collective(_TorchWork, BackgroundWork):
    """A collective of torch. A callback records its time of completion; torch offers no such callback for messages."""

    def watch(self) -> None:
        self._work.get_future().add_done_callback(self._set_completed)

    def _set_completed(self, future: Any) -> None:
        del future
        self.completed = perf_counter()


class CountedGroup(dist.ProcessGroup):
    """A process group for torch's DistributedDataParallel: it counts traffic and forwards calls to another group.

    Traffic is counted in this wrapper because DDP accepts only one communication hook, which gradient compression may
    need. Integer tensors are DDP's own bookkeeping (shapes, order of buckets) and are not counted. This class cannot
    time DDP's waits, which happen in C++, so it stores operations in `comm.launched` until `Comm.settle` reports them.
    """

    def __init__(self, comm: Comm, group: Any) -> None:
        super().__init__(comm.rank, comm.world_size)
        self._comm = comm
        self._group = group

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        spans = self._begin("all_reduce", tensors)
        return self._record(self._group.allreduce(tensors, opts or dist.AllreduceOptions()), spans)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.BroadcastOptions()
        spans = self._begin("broadcast", tensors, opts.rootRank)
        return self._record(self._group.broadcast(tensors, opts), spans)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        spans = self._begin("all_gather", inputs)
        return self._record(self._group.allgather(outputs, inputs, opts or dist.AllgatherOptions()), spans)

    def barrier(self, opts: Any = None) -> Any:
        return self._group.barrier(opts or dist.BarrierOptions())

    def getBackendName(self) -> str:
        return "paceline-counted"

    @property
    def group_name(self) -> str:
        return "paceline-counted"

    def _begin(self, op: str, tensors: list[Tensor], root: int | None = None) -> list[OpenOperation]:
        payload = [tensor for tensor in tensors if tensor.is_floating_point()]
        return [span for tensor in payload if (span := self._comm._begin(op, tensor, root)) is not None]

    def _record(self, work: Any, spans: list[OpenOperation]) -> Any:
        if spans:
            for earlier in self._comm.launched:
                earlier.check()
            self._comm.launched.append(LaunchedGroup(work, spans))
        return work


def wait_for_peers(work: Any, limit: timedelta) -> None:
    """Wait for a message or collective of torch, and show in this process's activity that it waits."""
    ACTIVITY.begin_wait()
    try:
        work.wait(limit)
    finally:
        ACTIVITY.end_wait()


def is_peer_failure(error: BaseException) -> bool:
    """Return whether an error of torch's own code, such as DDP's backward, means that a peer is late or gone."""
    if isinstance(error, dist.DistError):
        return True
    # A future raises a RuntimeError whose text contains the name of the original error's type.
    return isinstance(error, RuntimeError) and ("gloo/transport" in str(error) or "DistBackendError" in str(error))


def make_store(host: str, port: int, *, is_master: bool, timeout_s: float) -> Any:
    """Return torch's own store, which asks nobody for a secret: for workers that torchrun or another program started.

    With `is_master` this process hosts the store, and port 0 selects a free port.
    """
    if is_master:
        return _open_tcp_store(host, port, timeout_s=timeout_s)
    return dist.TCPStore(host, port, None, is_master, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def _open_tcp_store(host: str, port: int, *, timeout_s: float) -> Any:
    """Return a new store that this process hosts and that listens only at the address of `host`.

    A store that torch opens itself would listen on every network interface.
    """
    limit = timedelta(seconds=timeout_s)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        # Behind address translation, as in containers, the host of worker 0 has no interface with this address.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        listener = socket.create_server(("", port))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        host, port, None, True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def existing_world() -> tuple[int, int, Store] | None:
    """Return rank, world size and store of torch.distributed's default group; None if it is not initialised."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()


def wait_for(store: Store, key: str, timeout_s: float) -> bytes | None:
    """Wait until a peer sets `key` in a store, and return its value; return None after the time limit.

    Raise CommError if the process that hosts the store has ended.
    """
    try:
        store.wait([key], timedelta(seconds=timeout_s))
        return bytes(store.get(key))
    except RuntimeError as error:
        if "timeout" in str(error).lower():
            return None
        reason = str(error).partition("\n")[0]
        raise CommError(f"the process that hosts the rendezvous store is gone: {reason}") from error


def prefix_store(prefix: str, store: Store) -> Store:
    """Return a view of a store that adds a prefix to all keys, so that they differ from the store's other keys."""
    return dist.PrefixStore(prefix, store)


def _has_gpu_for_each(config: CommConfig) -> bool:
    """Return whether every host has a GPU for each of its workers, as nccl needs; all workers get the same answer."""
    num_gpus = torch.cuda.device_count()
    config.store.set(f"gpus/{config.rank}", json.dumps([config.node, num_gpus, config.local_rank < num_gpus]))
    reports = [json.loads(config.store.get(f"gpus/{peer}")) for peer in range(config.world_size)]
    num_workers = Counter(node for node, _, _ in reports)
    return all(has_own and num_gpus >= num_workers[node] for node, num_gpus, has_own in reports)


def _make_gloo(store: Store, rank: int, world_size: int, timeout_s: float, address: str) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if interface:
        device = dist.ProcessGroupGloo.create_device(interface=interface.split(",")[0])
    elif address:
        device = dist.ProcessGroupGloo.create_device(hostname=address)
    else:
        device = dist.ProcessGroupGloo.create_default_device()
    options._devices = [device]
    options._threads = 2
    return dist.ProcessGroupGloo(store, rank, world_size, options)


def _copy_back(staged: Tensor, tensor: Tensor) -> Callable[[], object] | None:
    return None if staged is tensor else partial(tensor.copy_, staged)


def _children(root: int, rank: int, world_size: int) -> list[int]:
    """Return the ranks to which a worker forwards a broadcast in a binomial tree."""
    distance = (rank - root) % world_size
    steps = [1 << k for k in range(world_size.bit_length()) if distance < 1 << k]
    return [(root + distance + step) % world_size for step in steps if distance + step < world_size]
