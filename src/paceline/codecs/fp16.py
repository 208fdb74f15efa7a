from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from paceline.codecs.cast import Cast


@dataclass(kw_only=True)
class Fp16(Cast):
    """IEEE half precision: 11 significant bits, overflows beyond 65,504."""

    name: ClassVar[str] = "fp16"
    cast: ClassVar[torch.dtype] = torch.float16
    relative_error: ClassVar[float] = 2.0**-11
