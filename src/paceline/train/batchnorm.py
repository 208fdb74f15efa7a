"""BatchNorm statistics in data-parallel training, in one of the modes that the option --batchnorm selects.

In mode `local`, each worker keeps the running statistics of its own batches. The mode `rank0` copies the running
statistics of rank 0 to all workers, and the mode `average` averages them over workers. Both modes do so only before an
evaluation, because training does not read running statistics. The mode `sync` normalises each step over the global
batch (like torch.nn.SyncBatchNorm, but on CPUs too). The mode `off` keeps no running statistics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.comm import Comm


class GlobalBatch:
    """Facts about this worker's part of the global batch in the current step, for the mode `sync`.

    The training loop sets them in every step, and all synchronised layers read them.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm = comm
        self.has_samples = True
        self.gradient_share = 1.0  # global gradient = sum over workers of share x local gradient


def prepare_batchnorm(model: nn.Module, mode: str, batch: GlobalBatch) -> nn.Module:
    """Change a model's BatchNorm layers in place for the mode `sync` or `off`, and return the model.

    The other modes need no change.
    """
    if mode == "off":
        for layer in batchnorm_layers(model):
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    if mode == "sync" and batch.comm.world_size > 1:
        for layer in batchnorm_layers(model):
            layer.__class__ = _synchronised_class(type(layer))
            layer.global_batch = batch  # type: ignore[assignment]
    return model


def synchronise_statistics(model: nn.Module, mode: str, comm: Comm, weight: float) -> None:
    """Make running means and variances equal on all workers if the mode is `rank0` or `average`; else do nothing.

    `weight` is this worker's weight in the average. The weights of all workers must sum to 1.
    """
    buffers = [b for layer in batchnorm_layers(model) for b in layer.buffers() if b.is_floating_point()]
    if comm.world_size == 1 or not buffers or mode not in ("rank0", "average"):
        return
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
    with comm.uncounted():
        if mode == "rank0":
            comm.broadcast(flat, root=0)
        else:
            flat.mul_(weight)
            comm.all_reduce(flat)
    for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))


def batchnorm_layers(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _synchronised_class(base: type[_BatchNorm]) -> type[_BatchNorm]:
    """Return a subclass of a BatchNorm class which, in training, normalises over the batches of all workers."""

    class Synchronised(base):  # type: ignore[misc, valid-type]
        global_batch: GlobalBatch

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return super().forward(x)  # type: ignore[no-any-return]
            output, mean, variance, count = _SyncBatchNorm.apply(  # type: ignore[no-untyped-call]
                x, self.weight, self.bias, self.eps, self.global_batch
            )
            if self.track_running_stats and self.running_mean is not None:
                with torch.no_grad():
                    self.num_batches_tracked.add_(1)
                    momentum = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
                    self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
                    unbiased = variance * (count / (count - 1).clamp(min=1))
                    self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
            return output  # type: ignore[no-any-return]

    Synchronised.__name__ = Synchronised.__qualname__ = base.__name__
    return Synchronised


class _SyncBatchNorm(torch.autograd.Function):
    """Batch normalisation with mean and variance over the samples of all workers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, batch: GlobalBatch) -> Any:
        dims = [d for d in range(x.dim()) if d != 1]
        high = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = float(x.numel() // x.shape[1]) if batch.has_samples else 0.0
        mean, variance = high.mean(dims), high.var(dims, correction=0)
        # Merge the workers' counts, means and sums of squared deviations as in Chan et al., which avoids cancellation.
        own = torch.cat([mean.new_tensor([count]), mean, variance * count])
        gathered = torch.stack(batch.comm.all_gather(own))
        counts, means, squares = gathered.split([1, len(mean), len(mean)], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (squares + counts * (means - mean) ** 2).sum(0) / total
        shape = [1, -1] + [1] * (x.dim() - 2)
        inverse = torch.rsqrt(variance + eps)
        normal = (high - mean.view(shape)) * inverse.view(shape)
        output = normal if weight is None else normal * weight.view(shape) + bias.view(shape)
        ctx.save_for_backward(normal, weight, inverse)
        ctx.total, ctx.batch, ctx.shape, ctx.dims = total, batch, shape, dims
        ctx.mark_non_differentiable(mean, variance, total)
        return output.to(x.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        normal, weight, inverse = ctx.saved_tensors
        batch, dims, shape = ctx.batch, ctx.dims, ctx.shape
        high = gradient.to(normal.dtype)
        bias_gradient, weight_gradient = high.sum(dims), (high * normal).sum(dims)
        # The loss of each worker depends on the inputs of all workers, through the shared statistics.
        share = batch.gradient_share if batch.has_samples else 0.0
        sums = torch.cat([bias_gradient, weight_gradient]) * share
        batch.comm.all_reduce(sums)
        mean_gradient, mean_product = (sums / ctx.total).split(len(bias_gradient))
        scale = inverse if weight is None else inverse * weight
        if share == 0.0:
            input_gradient = torch.zeros_like(normal)
        else:
            centred = high - (mean_gradient.view(shape) + normal * mean_product.view(shape)) / share
            input_gradient = centred * scale.view(shape)
        if weight is None:
            return input_gradient.to(gradient.dtype), None, None, None, None
        return input_gradient.to(gradient.dtype), weight_gradient, bias_gradient, None, None
