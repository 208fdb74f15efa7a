"""The learning rate of a step: scaled with the batch, warmed up, then constant, dropping or cosine.

Scaling: lr belongs to `base_batch`; the peak is lr times batch_size / base_batch (linear), its root (sqrt), or lr.

Warm-up: linear over `warmup` epochs. Where scaling raises lr it rises from lr to the peak, as Goyal et al. (2017) do
for large batches: lr itself is known to be safe, only the scaled one is not (so there is nothing to warm up where
scaling does not raise lr). Without scaling it rises from peak / warm-up steps to the peak at its last step.

After it: `step` multiplies by step_factor every step_epochs epochs, counted from the start of training; `cosine`
falls to 0 over the steps that remain and would reach it one step after the last.
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
    """The learning rate of a step, counted from 0. Depends on its arguments alone."""
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
