"""Exceptions that Paceline raises for users.

PacelineError
├── UsageError      the request was wrong; nothing was started   (exit code 2; also a ValueError)
└── RunError        something failed while running               (exit code 1)
    ├── BadSampleError a sample of a data set cannot be read; has its name and the reason
    ├── DivergedError  training stopped, because a loss or gradient was not finite
    └── WorkerError    a worker or parameter server died or raised an exception; has its rank and traceback
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PacelineError(Exception):
    """Base class of Paceline's exceptions. The message is one sentence that can be printed without changes."""


class UsageError(PacelineError, ValueError):
    """An invalid request. The message says what the user passed, what it conflicts with and what to do."""


class RunError(PacelineError):
    """Raised if something fails after work has started."""


class BadSampleError(RunError):
    """Raised if a sample of a data set cannot be read: an image that cannot be decoded, an error in a user's data set.

    `sample` names it: the path of a file, or `sample INDEX`.
    """

    def __init__(self, message: str, *, sample: str, reason: str) -> None:
        super().__init__(message)
        self.sample = sample
        self.reason = reason


class DivergedError(RunError):
    """Raised if training stops because a loss or gradient is NaN or infinite (`--on-nonfinite stop`).

    `is_orderly`: all workers stopped after the same step, and their processes can run another task.
    """

    def __init__(self, message: str, *, is_orderly: bool = False) -> None:
        super().__init__(message)
        self.is_orderly = is_orderly


class WorkerError(RunError):
    """Raised if a worker or a parameter server dies or raises an exception."""

    def __init__(self, rank: int, message: str, traceback: str = "", *, who: str = "") -> None:
        super().__init__(f"{who or f'worker {rank}'} {message}")
        self.rank = rank
        self.traceback = traceback


def unknown(kind: str, given: str, known: Iterable[str]) -> UsageError:
    """Return a UsageError for an unknown name. Its message suggests the nearest known name, or lists all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(given[:100], names, n=1, cutoff=0.51)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return UsageError(f"unknown {kind} {given!r}; {hint}")
