"""Strategy `ddp`: torch's DistributedDataParallel, with Paceline's codecs and measurements."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation
from paceline.errors import RunError, UsageError
from paceline.strategies.base import Guarantee, Strategy, Worker
from paceline.strategies.capabilities import (
    Accumulating,
    BufferEstimate,
    GradientsAtStep,
    KnownGradients,
    Tunable,
    TunedValues,
    WrappedModel,
)

# DDP does not synchronise BatchNorm's buffers, because --batchnorm controls them. torch 2.13 deprecates
# broadcast_buffers, the option's name in torch 2.11.
_PARAMETERS = inspect.signature(DistributedDataParallel.__init__).parameters
_LEAVE_BUFFERS_ALONE: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _PARAMETERS else "broadcast_buffers": False
}


class _Replica(DistributedDataParallel):
    """DistributedDataParallel whose error about unused parameters names Paceline's option `find_unused`."""

    def forward(self, *inputs: Any, **arguments: Any) -> Any:
        try:
            return super().forward(*inputs, **arguments)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if "find_unused_parameters" not in str(error):
                raise
            raise RunError(
                "a step left some parameters without a gradient, which ddp does not support by default; "
                "use --strategy ddp:find_unused=true"
            ) from error


@dataclass(kw_only=True)
class Ddp(Accumulating, KnownGradients, WrappedModel, BufferEstimate, Tunable, Strategy):
    """torch's DistributedDataParallel: buckets of gradients are all-reduced while backward runs."""

    name: ClassVar[str] = "ddp"
    paper: ClassVar[str] = "Li et al. 2020, arXiv:2006.15704"

    tuned_options: ClassVar[Mapping[str, TunedValues]] = {"bucket_mb": TunedValues.BUCKET_MB}

    bucket_mb: float = 25.0
    static_graph: bool = False
    gradient_as_view: bool = True
    find_unused: bool = False  # for models with parameters that a batch may leave unused; DDP then searches the graph

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.bucket_mb < math.inf:
            raise UsageError(f"option bucket_mb of strategy ddp must be above 0 and finite, not {self.bucket_mb:g}")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of_codec(self.codec)

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.AVERAGED

    @classmethod
    def unsupported(cls, comm: type[Comm]) -> str:
        if comm.process_group is Comm.process_group:
            return f"it needs a torch process group, which comm {comm.name!r} does not have"
        return ""

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        if self.accumulate > 1 and not worker.gradient_policy.knows_last_backward:
            # DistributedDataParallel decides in forward whether the following backward sends.
            raise UsageError(
                "strategy ddp cannot accumulate in your own loop; remove accumulate and run every backward of a step "
                "but the last under paceline.no_sync()"
            )
        if worker.comm.world_size == 1:
            return
        self._replica = _Replica(
            worker.replica,
            process_group=worker.comm.process_group(),
            bucket_cap_mb=self.bucket_mb,
            static_graph=self.static_graph,
            gradient_as_bucket_view=self.gradient_as_view,
            find_unused_parameters=self.find_unused,
            init_sync=False,  # replicas are already equal
            **_LEAVE_BUFFERS_ALONE,
        )
        if self.codec.relative_error:
            # Use a lambda, because DDP checks the annotations of hooks, and ours are strings.
            self._replica.register_comm_hook(None, lambda _, bucket: self._average_encoded(bucket))
            # Keyed by parameter, because DDP changes its buckets after the first step. (torch's PowerSGD hook keeps
            # errors by bucket and fails with several buckets on gloo: docs/negative-results.md.)
            self._keys = {id(parameter): key for key, parameter in enumerate(worker.parameters)}
        worker.replica = self._replica

    @property
    def loss_scale(self) -> float:
        # DDP divides the sum by the number of workers; this factor makes the result a mean weighted by samples.
        return self.worker.weight * self.worker.comm.world_size

    def no_sync(self) -> AbstractContextManager[Any]:
        if self.worker.comm.world_size == 1:
            return nullcontext()
        return self._replica.no_sync()

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        """Estimate the bytes of DDP's second set of buckets, which coexists with the first set after the first step."""
        return sum(tensor.nbytes for tensor in tensors) if world_size > 1 else 0

    def _average_encoded(self, bucket: Any) -> torch.futures.Future[Tensor]:
        comm, buffer = self.worker.comm, bucket.buffer()
        buffer.div_(comm.world_size)
        if self.codec.cast is not None:  # a cast needs no per-parameter state
            self.codec.sum(buffer, comm.all_reduce, comm, bucket.index())
        else:
            gradients = bucket.gradients()
            contiguous = [gradient.contiguous() for gradient in gradients]
            keys = [self._keys[id(parameter)] for parameter in bucket.parameters()]
            self.codec.sum_together(contiguous, comm.all_reduce, comm, keys)
            for gradient, summed in zip(gradients, contiguous, strict=True):
                if summed is not gradient:
                    gradient.copy_(summed)
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        # Bucket boundaries change the number of calls, not the number of bytes.
        if world_size == 1:
            return []

        def all_reduce(spec: TensorSpec) -> list[Operation]:
            return [Operation("all_reduce", spec.nbytes)]

        parts = [operation for spec in tensors for operation in self.codec.traffic(spec, all_reduce, world_size)]
        nbytes: dict[str, int] = {}
        for part in parts:
            nbytes[part.op] = nbytes.get(part.op, 0) + part.nbytes
        return [Operation(op, total) for op, total in nbytes.items()]
