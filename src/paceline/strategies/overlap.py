from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.errors import UsageError
from paceline.strategies.base import Guarantee, Strategy, Worker
from paceline.strategies.buckets import MB, GradientBuckets, plan_buckets
from paceline.strategies.optimizers import only_reads_gradients


@dataclass(kw_only=True)
class Overlap(Strategy):
    """Buckets of gradients, the last layer's first, are summed while backward still computes the others."""

    name: ClassVar[str] = "overlap"
    paper: ClassVar[str] = "Li et al. 2020, arXiv:2006.15704"
    carries_reach: ClassVar[bool] = True

    bucket_mb: float = 4.0
    first_bucket_mb: float = 1.0
    accumulate: int = 1  # micro-batches between synchronisations

    def __post_init__(self) -> None:
        for option in ("bucket_mb", "first_bucket_mb"):
            value = getattr(self, option)
            if not 0 < value < math.inf:
                raise UsageError(f"option {option} of strategy overlap must be above 0 and finite, not {value:g}")
        if self.accumulate < 1:
            raise UsageError(f"option accumulate of strategy overlap must be at least 1, not {self.accumulate}")

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT if self.codec.relative_error == 0 else Guarantee.LOSSY

    @property
    def num_micro_batches(self) -> int:
        return self.accumulate

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        if worker.comm.world_size == 1:
            return
        self._buckets = GradientBuckets(
            worker,
            first_bytes=self.first_bucket_mb * MB,
            bucket_bytes=self.bucket_mb * MB,
            # A sum may be read where it appears only if nothing will write to it.
            is_shared=not worker.is_library and only_reads_gradients(worker.optimizer),
        )

    @property
    def watched(self) -> list[nn.Parameter]:
        if self.worker.comm.world_size == 1:
            return []
        return self.worker.parameters if self.worker.is_library else self._buckets.early

    def on_gradient(self, parameter: nn.Parameter) -> None:
        self._buckets.arrived(parameter)

    def after_backward(self) -> None:
        if self.worker.comm.world_size == 1:
            return
        self._buckets.finish()
        self._buckets.give_back()

    def after_step(self) -> None:
        if self.worker.comm.world_size > 1:
            self._buckets.replaced.clear()

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1:
            return []
        cast = self.codec.cast
        if self.codec.relative_error and cast is None:
            return [
                operation
                for tensor in tensors
                for operation in self.codec.traffic(tensor, lambda s: [Operation("all_reduce", s.nbytes)], world_size)
            ]
        sizes = [(tensor.numel, tensor.itemsize, cast.itemsize if cast else tensor.itemsize) for tensor in tensors]
        buckets = plan_buckets(sizes, first_bytes=self.first_bucket_mb * MB, bucket_bytes=self.bucket_mb * MB)
        return [Operation("all_reduce", (bucket.end - bucket.begin) * bucket.kind) for bucket in buckets]
