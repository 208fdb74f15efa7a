"""Describe samples that cannot be read, and make data sets that leave them out.

`--on-bad-sample skip` finds them before training, in every process, so that all workers divide the same samples. If a
sample were left out while training runs, the other workers would not know it, and would weight their gradients wrongly.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from paceline.data.base import BadSample, Dataset, Selected, Tensors
from paceline.errors import BadSampleError, PacelineError, RunError

SKIP = "skip"
HINT = "repair or remove it, or use --on-bad-sample skip"
LATE_HINT = "--on-bad-sample skip leaves out only samples that cannot be read before training"
OnProgress = Callable[[int, int], None]  # samples checked so far, and all samples to check


def ignore_progress(done: int, total: int) -> None:
    """Progress callback that does nothing."""
    del done, total


def hint_for(on_bad_sample: str) -> str:
    """Return what to do about a bad sample, for the error that ends a run."""
    return LATE_HINT if on_bad_sample == SKIP else HINT


def without_bad_samples(dataset: Dataset, split: str, limit: int | None) -> tuple[Dataset, list[BadSample]]:
    """Read every sample of a data set once. Return the samples that can be read as a data set, and the others.

    If `limit` is not None, only the first `limit` samples are read and returned.
    """
    if isinstance(dataset, Tensors):
        return dataset, []
    readable, bad = [], []
    for index in range(min(len(dataset), limit or len(dataset))):
        try:
            dataset.batch(torch.tensor([index]), 0)
        except BadSampleError as error:
            bad.append(BadSample(split, error.sample, error.reason))
        except PacelineError:
            raise
        except Exception as error:  # the user's code may raise anything
            bad.append(BadSample(split, f"sample {index}", f"{type(error).__name__}: {error}"))
        else:
            readable.append(index)
    check_some_are_left(len(readable), bad)
    return (Selected(dataset, torch.tensor(readable)) if bad else dataset), bad


def check_some_are_left(num_readable: int, bad: list[BadSample]) -> None:
    """Raise RunError if no sample of a data set can be read."""
    if bad and not num_readable:
        first = bad[0]
        raise RunError(f"none of {len(bad)} {first.split} samples can be read; {first.name}: {first.reason}")
