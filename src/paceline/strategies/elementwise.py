"""Which optimisers can be given parts of a tensor."""

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
