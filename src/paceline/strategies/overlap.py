"""Strategy `overlap`: bucketed all-reduce during backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.buckets import Bucketed, GradientBuckets, plan_buckets
from paceline.strategies.capabilities import GradientsAtStep, KnownGradients


@dataclass(kw_only=True)
class Overlap(KnownGradients, Bucketed):
    """Buckets of gradients, last layer first, are all-reduced while backward computes the others."""

    name: ClassVar[str] = "overlap"
    paper: ClassVar[str] = "Li et al. 2020, arXiv:2006.15704"

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.AVERAGED

    def make_buckets(self) -> GradientBuckets:
        worker = self.worker
        # Sums can stay in shared memory only if nothing writes to them.
        is_shared = worker.gradient_policy.in_place_allowed and only_reads_gradients(worker.optimizer)
        return GradientBuckets(worker, self.limits, is_shared=is_shared)

    def after_backward(self) -> None:
        if self.worker.comm.world_size == 1:
            return
        self._buckets.finish()
        self._buckets.set_gradients()

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
        buckets = plan_buckets(sizes, self.limits)
        return [Operation("all_reduce", (bucket.end - bucket.begin) * bucket.kind) for bucket in buckets]


def only_reads_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimiser never writes to gradients. Then gradients may be in memory that peers read."""
    if type(optimizer) is torch.optim.SGD:
        return not any(group["nesterov"] or group["maximize"] for group in optimizer.param_groups)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        return not any(group["maximize"] for group in optimizer.param_groups)
    return bool(getattr(optimizer, "only_reads_gradients", False))
