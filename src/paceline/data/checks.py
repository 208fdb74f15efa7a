"""Find the samples of a data set that cannot be read, for `paceline data check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from paceline.data import load_data
from paceline.data.bad_samples import SKIP, OnProgress
from paceline.data.base import BadSample
from paceline.data.image_folder import find_bad_samples, list_folder
from paceline.errors import UsageError
from paceline.plugins import is_reference
from paceline.recipe import DataConfig


def check_data(config: DataConfig, on_progress: OnProgress) -> tuple[dict[str, int], Sequence[BadSample]]:
    """Read every sample. Return the number of samples by split, and the samples that cannot be read."""
    if config.name.startswith("folder:"):
        folder = list_folder(config)
        return {split: len(pairs) for split, pairs in folder.samples.items()}, find_bad_samples(folder, on_progress)
    if not is_reference(config.name):
        raise UsageError(
            f"data {config.name!r} is checked when it is loaded; name images (folder:PATH) or your own data "
            "(file.py:factory)"
        )
    data = load_data(dataclasses.replace(config, on_bad_sample=SKIP), seed=0)
    bad = [one.split for one in data.skipped]
    samples = {"train": len(data.train) + bad.count("train"), "test": len(data.test) + bad.count("test")}
    return samples, data.skipped
