"""A range of steps as people write it: `10:15` is steps 10, 11, 12, 13 and 14."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import UsageError

RULE = "write FIRST:END, as 10:15 for steps 10 to 14: steps count from 0, and the end is not among them"


@dataclass(frozen=True)
class StepRange:
    """Steps from the first up to the end, which is not among them."""

    first: int
    end: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step < self.end

    def __str__(self) -> str:
        last = self.end - 1
        return f"step {self.first}" if last == self.first else f"steps {self.first} to {last}"

    @staticmethod
    def parse(text: str, option: str) -> StepRange:
        """The range that was given to an option; what cannot be one is refused in that option's name."""
        match = re.fullmatch(r"\s*(\d{1,18}):(\d{1,18})\s*", text, re.ASCII)
        if match is None:
            raise UsageError(f"{option} {text!r} is not a range of steps; {RULE}")
        first, end = int(match[1]), int(match[2])
        if end <= first:
            raise UsageError(f"{option} {text!r} holds no step; {RULE}")
        return StepRange(first, end)


def check_within(steps: StepRange, total_steps: int, option: str) -> None:
    """A range must lie within the run: a trace of fewer steps than asked for would be a surprise an hour later."""
    if steps.end > total_steps:
        has = "1 step, number 0" if total_steps == 1 else f"{total_steps} steps, 0 to {total_steps - 1}"
        raise UsageError(
            f"{option} {steps.first}:{steps.end} reaches beyond the run, which has {has}; the end may be "
            f"{total_steps} at most, as it is not among the steps"
        )
