"""Learning-rate schedules: scaling with the batch size, warm-up, then constant, step or cosine.

Scaling: lr is for `base_batch`. The peak is lr times batch_size / base_batch (linear), times its root (sqrt), or lr.

Warm-up: linear over `warmup` epochs. With scaling, from lr to the peak, as in Goyal et al. (2017); there is no warm-up
if scaling does not raise lr. Without scaling, from peak / warm-up steps to the peak at the last warm-up step.

Afterwards `step` multiplies by step_factor every step_epochs epochs, counted from the start of training; `cosine`
falls to 0 over the remaining steps and would reach it one step after the last.
"""

from __future__ import annotations

import math

from paceline.errors import unknown
from paceline.recipe import OptimizerConfig, ScheduleConfig


def learning_rate(
    step: int,
    *,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    batch_size: int,
    steps_per_epoch: int,
    total_steps: int,
) -> float:
    """Return the learning rate of a step, counted from 0."""
    peak = optimizer.lr * _scale(schedule, batch_size)
    warmup_steps = round(schedule.warmup * steps_per_epoch)
    if step < warmup_steps:
        if schedule.scale_lr == "none":
            return peak * (step + 1) / warmup_steps
        start = min(optimizer.lr, peak)
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
    match schedule.scale_lr:
        case "none":
            return 1.0
        case "linear":
            return ratio
        case "sqrt":
            return math.sqrt(ratio)
    raise unknown("lr scaling", schedule.scale_lr, ("none", "linear", "sqrt"))
