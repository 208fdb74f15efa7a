"""What is known of optimisers: which can be given parts of a tensor, which leave gradients alone."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


def is_elementwise(optimizer: type[Optimizer]) -> bool:
    """Whether each element's update depends on that element alone, so that parts of a tensor can be updated apart.

    True only for optimisers known to be so; a subclass may differ from its base, so it counts as unknown.
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
    """Whether a step is known to leave gradients as they are, so that they may lie in memory that peers read too."""
    if type(optimizer) is torch.optim.SGD:
        return not any(group["nesterov"] or group["maximize"] for group in optimizer.param_groups)
    if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        return not any(group["maximize"] for group in optimizer.param_groups)
    return bool(getattr(optimizer, "only_reads_gradients", False))
