from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from paceline.codecs.cast import Cast


@dataclass(kw_only=True)
class Bf16(Cast):
    """bfloat16: float32's range with 8 significant bits."""

    name: ClassVar[str] = "bf16"
    cast: ClassVar[torch.dtype] = torch.bfloat16
    relative_error: ClassVar[float] = 2.0**-8
