"""Interval between two checkpoints: a number of steps, of epochs, or a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError

_UNITS: dict[str, tuple[Literal["steps", "epochs", "seconds"], float]] = {
    "": ("epochs", 1),
    "e": ("epochs", 1),
    "epoch": ("epochs", 1),
    "epochs": ("epochs", 1),
    "step": ("steps", 1),
    "steps": ("steps", 1),
    "s": ("seconds", 1),
    "m": ("seconds", 60),
    "min": ("seconds", 60),
    "h": ("seconds", 3600),
}
_MOST = 1e15


@dataclass(frozen=True)
class CheckpointInterval:
    """How much training lies between two checkpoints: `count` steps, epochs or seconds."""

    count: float
    unit: Literal["steps", "epochs", "seconds"]

    @staticmethod
    def parse(value: int | str) -> CheckpointInterval | None:
        """Parse `500steps`, `10m` (also `s` and `h`), `1e` or a number of epochs. Returns None for 0, which is off."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
        if match is None or match[2] not in _UNITS or float(match[1]) > _MOST:
            raise UsageError(
                f"train.checkpoint_every {value!r} is not an interval such as 500steps, 10m (also s, h) or 1e "
                "(epochs); 0 is never"
            )
        unit, factor = _UNITS[match[2]]
        count = float(match[1]) * factor
        if count == 0:
            return None
        if unit != "seconds" and count != int(count):
            raise UsageError(f"train.checkpoint_every {value!r} is not a whole number of {unit}")
        return CheckpointInterval(count, unit)

    def is_due(self, num_steps: int, steps_per_epoch: int) -> bool:
        """Return whether a checkpoint is due after this number of completed steps; False for times."""
        if self.unit == "seconds":
            return False
        every = int(self.count) * (steps_per_epoch if self.unit == "epochs" else 1)
        return num_steps % every == 0
