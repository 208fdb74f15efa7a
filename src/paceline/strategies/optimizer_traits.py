"""Properties of optimisers: element-wise updates, and steps that do not write to gradients."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


def is_elementwise(optimizer: type[Optimizer]) -> bool:
    """Whether an element's update depends on that element alone, so that slices of a tensor can be updated separately.

    True only for listed classes: a subclass may differ from its base.
    """
    return optimizer in _ELEMENTWISE


_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)


def only_reads_gradients(optimizer: Optimizer) -> bool:
    """Whether a step is known not to write to gradients, so that they may be in memory that peers read."""
    if type(optimizer) is torch.optim.SGD:
        return not any(group["nesterov"] or group["maximize"] for group in optimizer.param_groups)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        return not any(group["maximize"] for group in optimizer.param_groups)
    return bool(getattr(optimizer, "only_reads_gradients", False))
