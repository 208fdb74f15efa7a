"""The process group of the torch.distributed backend `paceline`: its collectives run on a paceline comm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.base import Comm
from paceline.comm.work_queue import QueuedWork, WorkQueue

_MEAN_TYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_SUM_TYPES = _MEAN_TYPES | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


class CommGroup(dist.ProcessGroup):
    """A process group that runs most collectives of dense CPU tensors on its own comm, and everything else on gloo.

    The comm runs sums, averages, and collectives that only move bytes. Gloo runs messages, all-to-all, other
    reductions, and collectives of tensors that are sparse or on other devices. Without gloo, messages and all-to-all
    raise RuntimeError; the other operations that gloo would run raise NotImplementedError.
    """

    def __init__(self, comm: Comm, gloo: Any = None) -> None:
        super().__init__(comm.rank, comm.world_size)
        self._comm = comm
        self._gloo = gloo
        self._queue = WorkQueue()
        if gloo is not None:
            # For methods that this class does not override, torch calls gloo.
            custom = dist.ProcessGroup.BackendType.CUSTOM
            self._set_default_backend(custom)
            self._register_backend(torch.device("cpu"), custom, gloo)

    def getBackendName(self) -> str:
        return "paceline"

    # Sums and averages.

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        if not _can_add(tensors, opts.reduceOp):
            return self._gloo_for("all_reduce").allreduce(tensors, opts)
        return self._start("all_reduce", lambda: self._sum_all(tensors, opts.reduceOp), tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllreduceCoalescedOptions()
        if not _can_add(tensors, opts.reduceOp):
            return self._gloo_for("all_reduce").allreduce_coalesced(tensors, opts)
        return self._start("all_reduce", lambda: self._sum_all(tensors, opts.reduceOp), tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.ReduceOptions()
        if not _can_add(tensors, opts.reduceOp):
            return self._gloo_for("reduce").reduce(tensors, opts)

        def do() -> None:
            for tensor in tensors:
                total = tensor.detach().clone(memory_format=torch.contiguous_format)
                self._sum(total, opts.reduceOp)
                if self._comm.rank == opts.rootRank:
                    tensor.copy_(total)

        return self._start("reduce", do, tensors, opts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        if not _can_add([*outputs, *_flat(inputs)], opts.reduceOp):
            return self._gloo_for("reduce_scatter").reduce_scatter(outputs, inputs, opts)

        def do() -> None:
            for output, pieces in zip(outputs, inputs, strict=True):
                whole = torch.cat([piece.reshape(-1) for piece in pieces])
                if len({piece.numel() for piece in pieces}) == 1:
                    self._sum_part(output, whole, opts.reduceOp)
                    continue
                self._sum(whole, opts.reduceOp)
                mine = whole.split([piece.numel() for piece in pieces])[self._comm.rank]
                output.copy_(mine.view(output.shape))

        return self._start("reduce_scatter", do, outputs, opts)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.ReduceScatterOptions()
        if not _can_add([*outputs, *inputs], opts.reduceOp):
            return self._one_by_one(self._gloo_for("reduce_scatter")._reduce_scatter_base, outputs, inputs, opts)

        def do() -> None:
            for output, whole in zip(outputs, inputs, strict=True):
                self._sum_part(output, whole, opts.reduceOp)

        return self._start("reduce_scatter", do, outputs, opts)

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    # Collectives that only move bytes.

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.BroadcastOptions()
        if not _are_plain(tensors):
            return self._gloo_for("broadcast").broadcast(tensors, opts)

        def do() -> None:
            for tensor in tensors:
                whole = tensor.contiguous()
                self._comm.broadcast(_as_bytes(whole), opts.rootRank)
                _copy_back(tensor, whole)

        return self._start("broadcast", do, tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllgatherOptions()
        if not _are_plain([*_flat(outputs), *inputs]):
            return self._gloo_for("all_gather").allgather(outputs, inputs, opts)

        def do() -> None:
            for pieces, tensor in zip(outputs, inputs, strict=True):
                _fill(pieces, self._comm.all_gather(_as_bytes(tensor.contiguous())))

        return self._start("all_gather", do, outputs, opts)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        # The outputs of this method are grouped by rank, those of `allgather` by tensor.
        return self.allgather([list(pieces) for pieces in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.AllgatherOptions()
        if not _are_plain([*outputs, *inputs]):
            return self._one_by_one(self._gloo_for("all_gather")._allgather_base, outputs, inputs, opts)

        def do() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                if output.numel() == 0:
                    continue
                whole = output.contiguous()
                pieces = list(whole.view(-1).chunk(self._comm.world_size))
                _fill(pieces, self._comm.all_gather(_as_bytes(tensor.contiguous())))
                _copy_back(output, whole)

        return self._start("all_gather", do, outputs, opts)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        opts = opts or dist.GatherOptions()
        if not _are_plain(inputs):
            return self._gloo_for("gather").gather(outputs, inputs, opts)

        def do() -> None:
            for index, tensor in enumerate(inputs):
                pieces = self._comm.gather(_as_bytes(tensor.contiguous()), opts.rootRank)
                if self._comm.rank == opts.rootRank:
                    _fill(outputs[index], pieces)

        return self._start("gather", do, outputs, opts)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        opts = opts or dist.ScatterOptions()
        if not _are_plain(outputs):
            return self._gloo_for("scatter").scatter(outputs, inputs, opts)

        def do() -> None:
            for index, tensor in enumerate(outputs):
                whole = tensor.contiguous()
                is_root = self._comm.rank == opts.rootRank
                pieces = [_as_bytes(piece.contiguous()) for piece in inputs[index]] if is_root else []
                self._comm.scatter(_as_bytes(whole), pieces, opts.rootRank)
                _copy_back(tensor, whole)

        return self._start("scatter", do, outputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._start("barrier", self._comm.barrier, [], opts or dist.BarrierOptions())

    # Names by which torch up to 2.12 calls four of the methods above.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def shutdown(self) -> None:
        self._queue.close()
        self._comm.close()
        if self._gloo is not None:
            self._gloo.shutdown()

    def abort(self) -> None:
        self._queue.abort()
        if self._gloo is not None:
            self._gloo.abort()

    def _start(self, what: str, do: Callable[[], None], result: list[Any], opts: Any) -> QueuedWork:
        for tensor in _flat(result):
            if not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)  # autograd does not see the write
        return self._queue.start(what, do, result, is_blocking=not getattr(opts, "asyncOp", True))

    def _gloo_for(self, what: str) -> Any:
        if self._gloo is None:
            raise NotImplementedError(
                f"{what} of these tensors needs gloo, but this process group only has comm {self._comm.name}, which "
                "sums and moves dense CPU tensors; use comm torch"
            )
        return self._gloo

    def _one_by_one(self, function: Any, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        *before, last = [function(output, tensor, opts) for output, tensor in zip(outputs, inputs, strict=True)]
        for work in before:
            work.wait()
        return last

    def _sum_all(self, tensors: list[Tensor], op: Any) -> None:
        for tensor in tensors:
            whole = tensor.contiguous()
            self._sum(whole, op)
            _copy_back(tensor, whole)

    def _sum(self, whole: Tensor, op: Any) -> None:
        self._comm.all_reduce(whole)
        if op == dist.ReduceOp.AVG:
            whole.div_(self._comm.world_size)

    def _sum_part(self, output: Tensor, whole: Tensor, op: Any) -> None:
        if output.numel() == 0:
            return
        part = output.contiguous()
        self._comm.reduce_scatter(part, whole.contiguous())
        if op == dist.ReduceOp.AVG:
            part.div_(self._comm.world_size)
        _copy_back(output, part)


def _are_plain(tensors: list[Tensor]) -> bool:
    return all(tensor.device.type == "cpu" and tensor.layout == torch.strided for tensor in tensors)


def _can_add(tensors: list[Tensor], op: Any) -> bool:
    if op == dist.ReduceOp.SUM:
        dtypes = _SUM_TYPES
    elif op == dist.ReduceOp.AVG:
        dtypes = _MEAN_TYPES
    else:
        return False
    return _are_plain(tensors) and all(tensor.dtype in dtypes for tensor in tensors)


def _as_bytes(whole: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as a vector of bytes."""
    return whole.detach().view(-1).view(torch.uint8)


def _fill(outputs: list[Tensor], pieces: list[Tensor]) -> None:
    for output, piece in zip(outputs, pieces, strict=True):
        output.copy_(piece.view(output.dtype).view(output.shape))


def _copy_back(tensor: Tensor, whole: Tensor) -> None:
    if whole is not tensor:
        tensor.copy_(whole)


def _flat(values: list[Any]) -> list[Tensor]:
    return [tensor for value in values for tensor in (value if isinstance(value, list) else [value])]
