"""Optimisers of recipes, by name (torch's, and LARS and LAMB for large batches), and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import UsageError, unknown
from paceline.recipe import OptimizerConfig, Recipe, ScheduleConfig


def build_optimizer(config: OptimizerConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return the optimiser of a recipe.

    The recipe's momentum applies only to sgd and lars. Adam, AdamW and LAMB use their default constants.
    """
    parameters = list(parameters)
    if not parameters:
        raise UsageError("the optimizer got no parameters; pass those of a model")
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.name in ("sgd", "lars"):
        settings["momentum"] = config.momentum
    if config.name == "sgd":
        settings["nesterov"] = config.nesterov
    build: Any = optimizer_class(config.name)
    optimizer: Optimizer = build(parameters, **settings)
    return optimizer


def optimizer_class(name: str) -> type[Optimizer]:
    """Return the optimiser class with this name. Raises UsageError if there is none."""
    if name not in _CLASSES:
        raise unknown("optimizer", name, _CLASSES)
    return _CLASSES[name]


Group = dict[str, Any]  # torch's parameter group


class _LayerwiseOptimizer(Optimizer):
    """Base class of optimisers that update each tensor as one layer.

    A subclass implements `update`, which must not change gradients.
    """

    only_reads_gradients = True  # so a strategy may store gradients in memory that other workers read

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Call `update` for each parameter that has a gradient. Return the closure's loss, or None if there is none."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.update(parameter, parameter.grad, group=group)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, *, group: Group) -> None:
        raise NotImplementedError


class Lars(_LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017).

        ratio = trust * |w| / (|g| + decay * |w|)
        v     = momentum * v + lr * ratio * (g + decay * w)
        w     = w - v

    Tensors of at most one dimension (biases, parameters of normalisation layers) are updated with ratio 1 and without
    decay. If the numerator or the denominator of the ratio is 0, the ratio is 1. As in the paper, lr multiplies the
    gradient before the momentum buffer, so a change of lr does not affect updates already in the buffer. With the
    default `trust` of 0.001, |lr * ratio * (g + decay * w)| is about 0.001 * lr * |w|. Useful values of lr are
    therefore 10 to 1,000 times those of SGD.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        _refuse_negative("Lars", lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    def update(self, parameter: Tensor, gradient: Tensor, *, group: Group) -> None:
        change = gradient
        rate: Tensor | float = group["lr"]
        if parameter.ndim > 1:
            decay = group["weight_decay"]
            weight_norm = _norm(parameter)
            change = gradient.add(parameter, alpha=decay) if decay else gradient
            rate = group["lr"] * _ratio(group["trust"] * weight_norm, _norm(gradient) + decay * weight_norm)
        change = change * rate
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            change = state["momentum_buffer"].mul_(group["momentum"]).add_(change)
        parameter.sub_(change)


class Lamb(_LayerwiseOptimizer):
    """Layer-wise Adam for large batches (You et al. 2020), with the bias correction of the paper's Algorithm 2.

        m, v  = running means of g and g * g, divided by 1 - beta1 ** step and 1 - beta2 ** step
        u     = m / (sqrt(v) + eps) + decay * w
        w     = w - lr * |w| / |u| * u

    Tensors of at most one dimension (biases, parameters of normalisation layers) are updated as in Adam: without decay,
    and with 1 instead of the ratio |w| / |u|. For other tensors, 1 replaces the ratio if |w| or |u| is 0.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        _refuse_negative("Lamb", lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0 <= beta < 1 for beta in betas):
            raise UsageError(f"Lamb got betas {betas}; each must be at least 0 and below 1")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, *, group: Group) -> None:
        state = self.state[parameter]
        if not state:
            # A tensor on the CPU, as in torch's Adam: checkpoints hold tensors, and reading it does not wait for a GPU.
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = int(state["step"])
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = (mean / (1 - beta1**step)).div_(root)
        rate: Tensor | float = group["lr"]
        if parameter.ndim > 1:
            if group["weight_decay"]:
                change.add_(parameter, alpha=group["weight_decay"])
            rate = group["lr"] * _ratio(_norm(parameter), _norm(change))
        parameter.sub_(change * rate)


def _norm(tensor: Tensor) -> Tensor:
    """Return the Euclidean norm in float32 or a wider type, because squares of half-precision numbers overflow."""
    length: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
    return length


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return above / below, or 1 if either is 0, as a tensor, so that the CPU does not wait for a GPU."""
    usable = (above > 0) & (below > 0)
    one = torch.ones_like(above)
    return torch.where(usable, above / torch.where(usable, below, one), one)


def _refuse_negative(optimizer: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise UsageError(f"{optimizer} got {name} {value}; it must be at least 0")


_CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "lars": Lars,
    "lamb": Lamb,
}


def learning_rate(step: int, recipe: Recipe, *, steps_per_epoch: int, total_steps: int) -> float:
    """Return the learning rate of step `step`, counted from 0.

    Scaling: lr is the learning rate for a global batch of `base_batch` samples. The peak is lr times the ratio
    batch_size / base_batch (linear), lr times the square root of this ratio (sqrt), or lr itself (none).

    Warm-up: the learning rate rises linearly over `warmup` epochs. With scaling, it rises from lr to the peak, as in
    Goyal et al. (2017), or is constant if the peak is not above lr. Without scaling, it rises from
    peak / (number of warm-up steps) in the first step to the peak in the last warm-up step.

    After warm-up, the schedule `constant` keeps the peak. The schedule `step` multiplies the peak by step_factor every
    step_epochs epochs, counted from the start of training. The schedule `cosine` lowers the learning rate over the
    remaining steps, so that it would reach 0 one step after the last.
    """
    schedule, lr = recipe.schedule, recipe.optimizer.lr
    peak = lr * _scale(schedule, recipe.batch_size)
    warmup_steps = round(schedule.warmup * steps_per_epoch)
    if step < warmup_steps:
        if schedule.scale_lr == "none":
            return peak * (step + 1) / warmup_steps
        start = min(lr, peak)
        return start + (peak - start) * step / warmup_steps
    match schedule.name:
        case "constant":
            return peak
        case "step":
            num_drops = step // steps_per_epoch // schedule.step_epochs
            return float(peak * schedule.step_factor**num_drops)
        case "cosine":
            progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
    raise unknown("schedule", schedule.name, ("constant", "step", "cosine"))


def _scale(schedule: ScheduleConfig, batch_size: int) -> float:
    ratio = batch_size / schedule.base_batch
    factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    if schedule.scale_lr not in factors:
        raise unknown("lr scaling", schedule.scale_lr, factors)
    return factors[schedule.scale_lr]
