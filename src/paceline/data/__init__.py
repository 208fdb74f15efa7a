"""Load training and test sets by name: published data, image folders, synthetic data or the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.data.base import Batch, Data, Dataset, Selected
from paceline.data.cifar10 import load_cifar10
from paceline.data.image_folder import load_folder
from paceline.data.mnist import load_mnist, load_mnist_mini
from paceline.data.sharding import ShardPlan, epoch_generator, make_plan
from paceline.data.synthetic import load_synthetic
from paceline.data.user_data import load_user
from paceline.errors import UsageError, unknown
from paceline.plugins import is_reference, refuse_file_alone
from paceline.recipe import DataConfig

__all__ = [
    "Batch",
    "Data",
    "Dataset",
    "ShardPlan",
    "data_sources",
    "epoch_generator",
    "load_data",
    "make_plan",
]


@dataclass(frozen=True)
class _Source:
    name: str  # as shown to users, who replace the part after the colon
    description: str
    load: Callable[[DataConfig, int], Data]

    def accepts(self, name: str) -> bool:
        prefix, colon, _ = self.name.partition(":")
        return name.startswith(prefix + colon) if colon else name == self.name


# The first source that accepts a name loads it. `_USER_SOURCE` is tried last.
_SOURCES = (
    _Source("mnist-mini", "2,000 + 500 images of MNIST, included in the package", load_mnist_mini),
    _Source("mnist", "60,000 + 10,000 handwritten digits, 1x28x28, 11 MB to download", load_mnist),
    _Source("cifar10", "50,000 + 10,000 photographs in 10 classes, 3x32x32, 170 MB to download", load_cifar10),
    _Source("folder:PATH", "images in PATH/train/CLASS/ and PATH/val/CLASS/ (or test/)", load_folder),
    _Source("synthetic:CxHxWxCLASSES", "random but learnable: a prototype per class plus noise", load_synthetic),
)
_USER_SOURCE = _Source("file.py:factory", "your own function; also package.module:factory", load_user)


def data_sources() -> dict[str, str]:
    """Return the description of every data source, by name."""
    return {source.name: source.description for source in (*_SOURCES, _USER_SOURCE)}


def load_data(config: DataConfig, *, seed: int) -> Data:
    """Load the data that a recipe names.

    If `config.on_bad_sample` is `skip`, samples that cannot be read are left out, and listed in `Data.skipped`.
    `config.train_samples` and `config.test_samples` limit the two sets to their first samples; None means all samples.
    The same config and seed give the same samples in every process.
    """
    data = _source(config.name).load(config, seed)
    return Data(
        train=_first(data, config.train_samples, config.name, "train"),
        test=_first(data, config.test_samples, config.name, "test"),
        shape=data.shape,
        num_classes=data.num_classes,
        skipped=data.skipped,
    )


def _source(name: str) -> _Source:
    for source in _SOURCES:
        if source.accepts(name):
            return source
    if is_reference(name):
        return _USER_SOURCE
    refuse_file_alone(name, "data")
    raise unknown("data", name, data_sources())


def _first(data: Data, num_samples: int | None, name: str, split: str) -> Dataset:
    """Return the first samples of the training or test set.

    Loaders that leave out bad samples have looked for them among the first `num_samples` only.
    """
    dataset = data.train if split == "train" else data.test
    num_skipped = sum(bad.split == split for bad in data.skipped)
    total = len(dataset) + num_skipped
    if num_samples is not None and num_samples > total:
        raise UsageError(
            f"data.{split}_samples is {num_samples}, but {name!r} has {total} {split} samples; ask for at most {total}"
        )
    if num_skipped or num_samples in (None, total):
        return dataset
    return Selected(dataset, torch.arange(num_samples))
