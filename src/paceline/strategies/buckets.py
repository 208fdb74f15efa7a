"""Gradient buckets for the strategies `overlap` and `sharded`, which exchange gradients while backward runs.

The gradients of all parameters are stored in a few flat vectors, which the comm provides (`Reduction`). A bucket is a
slice of such a vector that is exchanged in one collective. Buckets go from the last layer to the first, because
backward completes gradients in this order. A bucket is exchanged once its own gradients and those of all earlier
buckets are complete.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import TensorSpec
from paceline.comm import CompletedWork, Reduction, Work
from paceline.errors import UsageError
from paceline.strategies.base import Guarantee, Strategy, Worker, gradient_of
from paceline.strategies.capabilities import (
    Accumulating,
    BufferEstimate,
    DetectsUnreached,
    GradientBuffers,
    Tunable,
    TunedValues,
)

MB = 1_000_000
FIRST_MB = 1.0
LARGE = 1 << 14  # elements; tensors from this size on are scaled while they are copied, smaller ones in one call
IN_PLACE_BYTES = 2 << 20  # gradients of a model up to this size stay in a core's cache from backward to the sum
ALIGN = 16  # elements: a bucket begins at a multiple of this, on a cache line


@dataclass
class Bucket:
    """One slice of a vector of gradients: elements `begin:end`, which are exchanged in one collective."""

    kind: Any  # selects the vector; all tensors of a bucket have the same kind
    members: list[int] = field(default_factory=list)  # indices of the tensors
    offsets: list[int] = field(default_factory=list)  # start of each member in the vector
    begin: int = 0
    end: int = 0
    flags: int = 0  # end of the members; their reach flags (see plan_buckets) begin here, if the bucket has any


@dataclass(frozen=True)
class Limits:
    """Size limits of the first bucket and of every other bucket."""

    first_bytes: float
    bucket_bytes: float


def plan_buckets(
    sizes: Sequence[tuple[int, int, Any]], limits: Limits, *, divisor: int = 1, with_reach: bool = False
) -> list[Bucket]:
    """Assign tensors to buckets, the last tensor first, and return the buckets.

    `sizes` contains (numel, itemsize, kind) of each tensor. All tensors of a bucket have the same kind (data types and
    device). A bucket ends with the tensor that fills it to its size limit. The first bucket is small, so that
    communication starts early. The lengths of buckets are multiples of `divisor`.

    With `with_reach`, each tensor has one extra element, its reach flag: 1 if backward produced the tensor's gradient
    on this worker, else 0. The sum of a flag over workers is above 0 if at least one worker has the gradient.
    """
    closed_buckets: list[Bucket] = []
    open_buckets: dict[Any, Bucket] = {}
    lengths: dict[Any, int] = {}

    def close(bucket: Bucket) -> None:
        bucket.flags = bucket.end
        if with_reach:
            bucket.end += len(bucket.members)
        bucket.end = bucket.begin + math.ceil((bucket.end - bucket.begin) / divisor) * divisor
        lengths[bucket.kind] = math.ceil(bucket.end / ALIGN) * ALIGN
        closed_buckets.append(bucket)

    for index in reversed(range(len(sizes))):
        numel, itemsize, kind = sizes[index]
        if kind not in open_buckets:
            begin = lengths.get(kind, 0)
            open_buckets[kind] = Bucket(kind, begin=begin, end=begin)
        bucket = open_buckets[kind]
        bucket.members.append(index)
        bucket.offsets.append(bucket.end)
        bucket.end += numel
        limit = limits.first_bytes if not closed_buckets else limits.bucket_bytes
        if (bucket.end - bucket.begin) * itemsize >= limit:
            close(open_buckets.pop(kind))
    for bucket in list(open_buckets.values()):
        close(bucket)
    return closed_buckets


class GradientBuckets:
    """The gradients of one worker, stored in vectors of the comm and exchanged bucket by bucket in order.

    `is_scattered`: buckets are reduce-scattered instead of all-reduced, so each worker gets only a slice of the sums.
    `is_shared`: the sums may be in memory that all workers read. `divisor`: bucket lengths are multiples of it.
    """

    def __init__(
        self,
        worker: Worker,
        limits: Limits,
        *,
        is_scattered: bool = False,
        is_shared: bool = False,
        divisor: int = 1,
    ) -> None:
        self._worker = worker
        cast, policy = worker.codec.cast, worker.gradient_policy
        self._carries_reach = policy.none_where_unreached
        # Codecs whose encoded tensors cannot be added do the sum themselves, synchronously, in private memory.
        self._is_encoded = bool(worker.codec.relative_error) and cast is None
        self._is_scattered = is_scattered
        self.parameters = worker.parameters
        # Tensors of one vector have the same data type on the wire, device and own data type.
        sizes = [(p.numel(), p.element_size(), (cast or p.dtype, p.device, p.dtype)) for p in self.parameters]
        self.buckets = plan_buckets(sizes, limits, divisor=divisor, with_reach=self._carries_reach)
        lengths = {bucket.kind: bucket.end for bucket in self.buckets}
        self.reductions: dict[Any, Reduction] = {
            kind: self._reduction(length, *kind[:2], is_shared=is_shared) for kind, length in lengths.items()
        }
        self.own: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        self.results: list[Tensor] = list(self.own)
        self._positions = {}
        for number, bucket in enumerate(self.buckets):
            reduction = self.reductions[bucket.kind]
            for index, offset in zip(bucket.members, bucket.offsets, strict=True):
                parameter = self.parameters[index]
                self.own[index] = view_like(parameter, reduction.own, offset)
                self.results[index] = view_like(parameter, reduction.result, offset)
                self._positions[parameter] = (index, number)
        num_bytes = sum(reduction.own.nbytes for reduction in self.reductions.values())
        # Backward accumulates small gradients directly into the vectors. For large ones that is slower: backward would
        # read zeros from memory first, while a separate gradient is copied once, perhaps by another thread.
        is_allowed = policy.in_place_allowed and not policy.none_where_unreached
        self.is_in_place = is_allowed and num_bytes <= IN_PLACE_BYTES and cast is None and not self._is_encoded
        self.replaced_gradients: list[Tensor | None] = []
        self._reset()

    def attach(self) -> None:
        """Zero all gradient vectors. Make each `grad` a view of one of the vectors. Backward adds to these views."""
        for reduction in self.reductions.values():
            reduction.own.zero_()
        for parameter, own in zip(self.parameters, self.own, strict=True):
            parameter.grad = own

    def _reduction(self, length: int, dtype: torch.dtype, device: torch.device, *, is_shared: bool) -> Reduction:
        comm = self._worker.comm
        if self._is_encoded:
            return Reduction(comm, torch.zeros(length, dtype=dtype, device=device))
        return comm.reduction(length, dtype, device, shared=is_shared)

    @property
    def parameters_before_last(self) -> list[nn.Parameter]:
        """Return the parameters that need hooks: those of all buckets but the last. `finish` starts the last bucket."""
        return [self.parameters[index] for bucket in self.buckets[:-1] for index in bucket.members]

    def _reset(self) -> None:
        self._num_missing = [len(bucket.members) for bucket in self.buckets]
        self._is_complete = [False] * len(self.parameters)
        self._works: list[Work] = []

    def mark_complete(self, parameter: nn.Parameter) -> None:
        """Record that backward has completed the gradient of `parameter` on this worker.

        If its bucket is now complete, start the exchange of all buckets that are ready (see `_start`).
        """
        index, number = self._positions[parameter]
        self._is_complete[index] = True
        self._num_missing[number] -= 1
        if self._num_missing[number] == 0:
            self._start()
            self._worker.comm.progress()

    def finish(self) -> None:
        """Exchange the remaining buckets after backward, with zeros for missing gradients, and wait for all sums."""
        for index, parameter in enumerate(self.parameters):
            self._is_complete[index] |= parameter.grad is not None  # True for a gradient from no_sync, too
        self._num_missing = [0] * len(self.buckets)
        self._start()
        for work in self._works:
            work.wait()
        self._read_reach()
        self._reset()

    def set_gradients(self) -> None:
        """Set the parameters' gradients to the sums.

        With `none_where_unreached`, set a gradient to None if no worker's backward produced it.
        """
        if self.is_in_place:
            for parameter, result in zip(self.parameters, self.results, strict=True):
                parameter.grad = result
            return
        # Keep the old gradients until after the step. Freed here, their memory would return to the system, and the next
        # backward would have to allocate it again.
        self.replaced_gradients = [parameter.grad for parameter in self.parameters]
        for parameter, result, is_reached in zip(self.parameters, self.results, self.is_reached, strict=True):
            if not is_reached:
                parameter.grad = None
            elif result.dtype == parameter.dtype:
                parameter.grad = result
            else:
                gradient_of(parameter).copy_(result)

    def _start(self) -> None:
        """Start to exchange complete buckets in their order, up to the first incomplete bucket.

        Therefore all workers exchange buckets in the same order, as collectives require.
        """
        while len(self._works) < len(self.buckets) and self._num_missing[len(self._works)] == 0:
            bucket = self.buckets[len(self._works)]
            reduction = self.reductions[bucket.kind]
            fill = self._make_fill(bucket, reduction)
            if self._is_encoded:
                if fill is not None:
                    fill()
                self._sum_encoded(bucket, reduction)
                self._works.append(CompletedWork())
                continue
            start = reduction.start_scatter if self._is_scattered else reduction.start
            self._works.append(start(bucket.begin, bucket.end, fill))

    def _sum_encoded(self, bucket: Bucket, reduction: Reduction) -> None:
        comm, codec = self._worker.comm, self._worker.codec
        owns = [self.own[index] for index in bucket.members]
        contiguous = [own.contiguous() for own in owns]
        codec.sum_together(contiguous, comm.all_reduce, comm, bucket.members)
        for own, summed in zip(owns, contiguous, strict=True):
            if summed is not own:
                own.copy_(summed)
        if self._carries_reach:
            with comm.uncounted():
                comm.all_reduce(reduction.own[bucket.flags : bucket.end])

    def _make_fill(self, bucket: Bucket, reduction: Reduction) -> Callable[[], None] | None:
        """Return a function that copies a bucket's gradients, times the worker's weight, to the vector of `reduction`.

        Returns None if backward has already written them there.
        """
        weight = 1.0 if self.is_in_place else self._worker.weight  # gradients in place were weighted with the loss
        if self.is_in_place and all(self.parameters[index].grad is self.own[index] for index in bucket.members):
            return None
        gradients = [self.parameters[i].grad if self._is_complete[i] else None for i in bucket.members]
        owns = [self.own[i] for i in bucket.members]

        @torch.no_grad()
        def fill() -> None:
            small, sources = [], []
            for own, gradient in zip(owns, gradients, strict=True):
                if gradient is None:
                    own.zero_()
                elif own.data_ptr() == gradient.data_ptr():  # already in the comm's memory
                    own.mul_(weight)
                elif own.numel() >= LARGE:
                    torch.mul(gradient, weight, out=own)
                else:
                    small.append(own)
                    sources.append(gradient)
            if small:
                torch._foreach_copy_(small, sources)
                torch._foreach_mul_(small, weight)
            if self._carries_reach:
                reach = torch.tensor([gradient is not None for gradient in gradients], dtype=reduction.own.dtype)
                reduction.own[bucket.flags : bucket.flags + len(reach)].copy_(reach)

        return fill

    def _read_reach(self) -> None:
        self.is_reached = [True] * len(self.parameters)
        if not self._carries_reach:
            return
        for bucket in self.buckets:
            result = self.reductions[bucket.kind].result
            flags = result[bucket.flags : bucket.flags + len(bucket.members)].tolist()
            for index, flag in zip(bucket.members, flags, strict=True):
                self.is_reached[index] = flag > 0


@dataclass(kw_only=True)
class Bucketed(Accumulating, GradientBuffers, DetectsUnreached, BufferEstimate, Tunable, Strategy):
    """Base class of strategies that exchange gradients in buckets while backward runs."""

    tuned_options: ClassVar[Mapping[str, TunedValues]] = {"bucket_mb": TunedValues.BUCKET_MB}

    bucket_mb: float = 4.0
    first_bucket_mb: float | None = None  # None: FIRST_MB, or bucket_mb if that is smaller

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("bucket_mb", "first_bucket_mb"):
            value = getattr(self, option)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"option {option} of strategy {self.name} must be above 0 and finite, not {value:g}")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.of_codec(self.codec)

    @property
    def limits(self) -> Limits:
        """Return the size limits of the buckets."""
        first_mb = min(FIRST_MB, self.bucket_mb) if self.first_bucket_mb is None else self.first_bucket_mb
        return Limits(first_mb * MB, self.bucket_mb * MB)

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        """Estimate the bytes of the buckets' vectors, and of copies of equal size if the codec does the sum itself."""
        if world_size == 1:
            return 0
        cast = self.codec.cast
        own = sum(tensor.numel * (cast.itemsize if cast else tensor.itemsize) for tensor in tensors)
        return own * 2 if self.codec.relative_error and cast is None else own

    @abstractmethod
    def make_buckets(self) -> GradientBuckets: ...

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        if worker.comm.world_size > 1:
            self._buckets = self.make_buckets()

    @property
    def hooked_parameters(self) -> list[nn.Parameter]:
        return self._buckets.parameters_before_last if self.worker.comm.world_size > 1 else []

    @property
    def loss_scale(self) -> float:
        is_in_place = self.worker.comm.world_size > 1 and self._buckets.is_in_place
        return self.worker.weight if is_in_place else 1.0

    def zero_grad(self) -> None:
        if self.worker.comm.world_size > 1 and self._buckets.is_in_place:
            self._buckets.attach()
        else:
            self.worker.optimizer.zero_grad()

    def on_gradient(self, parameter: nn.Parameter) -> None:
        self._buckets.mark_complete(parameter)

    def after_step(self) -> None:
        if self.worker.comm.world_size > 1:
            self._buckets.replaced_gradients.clear()


def view_like(parameter: Tensor, vector: Tensor, offset: int) -> Tensor:
    """Return a view of `vector` from `offset` on, with the shape and memory layout of a parameter.

    The layout is kept for contiguous and channels-last parameters; for others the view is contiguous.
    """
    stretch = vector[offset : offset + parameter.numel()]
    dense = parameter.is_contiguous() or (
        parameter.dim() == 4 and parameter.is_contiguous(memory_format=torch.channels_last)
    )
    return stretch.as_strided(parameter.shape, parameter.stride()) if dense else stretch.view(parameter.shape)
