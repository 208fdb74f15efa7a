"""The oracle: the reference result for every strategy, computed by one process.

In every step, the process computes the gradients of all workers one after the other, averages them, and calls the
optimiser. `paceline verify` and the tests compare the parameters under each strategy with the oracle's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from paceline.comm.threads import ThreadsComm
from paceline.data import Data, make_plan
from paceline.recipe import Recipe
from paceline.train.batchnorm import GlobalBatch, prepare_batchnorm
from paceline.train.optimizers import build_optimizer, learning_rate
from paceline.train.step import Arithmetic, build_objective, forward_backward


def oracle_steps(
    recipe: Recipe,
    data: Data,
    model: nn.Module,
    num_workers: int,
    on_spread: Callable[[float], None] | None = None,
) -> Iterator[dict[str, Tensor]]:
    """Yield a copy of the parameters after each step of exactly synchronised workers.

    Gradients are weighted by the workers' numbers of samples, and added in order of rank and in the model's precision.
    With BatchNorm mode `sync` the global batch is computed as one batch. In every step, `on_spread` is called with the
    sum of the norms of the weighted gradients, divided by the norm of their sum. This number is at least 1, and grows
    with the amount of cancellation between workers.
    """
    alone = GlobalBatch(ThreadsComm.world(1)[0])
    arithmetic = Arithmetic(recipe.train.precision)
    model = prepare_batchnorm(arithmetic.place(model), recipe.train.batchnorm, alone).train()
    parameters = dict(model.named_parameters())
    trained = [parameter for parameter in parameters.values() if parameter.requires_grad]
    optimizer = build_optimizer(recipe.optimizer, trained)
    objective = build_objective(recipe.train.loss)
    num_shards = 1 if recipe.train.batchnorm == "sync" else num_workers
    plan = make_plan(
        data.train, batch_size=recipe.batch_size, num_workers=num_shards, seed=recipe.seed, order=recipe.data.order
    )
    total_steps = recipe.num_steps(len(data.train))
    for step in range(total_steps):
        epoch, index = divmod(step, plan.steps_per_epoch)
        counts = plan.counts(index)
        means = [torch.zeros_like(parameter) for parameter in trained]
        norms = 0.0
        for rank in range(num_shards):
            if counts[rank] == 0:
                continue
            optimizer.zero_grad()
            inputs, target = data.train.batch(plan.shard(epoch, index, rank), epoch)
            forward_backward(model, inputs, target, objective=objective, arithmetic=arithmetic)
            share = counts[rank] / sum(counts)
            for mean, parameter in zip(means, trained, strict=True):
                if parameter.grad is not None:
                    mean.add_(parameter.grad, alpha=share)
            norms += share * _norm([parameter.grad for parameter in trained if parameter.grad is not None])
        if on_spread is not None:
            on_spread(norms / _norm(means))
        rate = learning_rate(step, recipe, steps_per_epoch=plan.steps_per_epoch, total_steps=total_steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for mean, parameter in zip(means, trained, strict=True):
            parameter.grad = mean
        optimizer.step()
        yield {name: parameter.detach().clone() for name, parameter in parameters.items()}


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())
