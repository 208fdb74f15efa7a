"""Load CIFAR-10 from its published binary files.

Each record is a label byte, then 3,072 pixel bytes, channel by channel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from paceline.data.base import Data
from paceline.data.download import obtain
from paceline.data.in_memory import Augmentation, InMemory, Normalization
from paceline.data.published import PUBLISHED, data_directory
from paceline.errors import UsageError
from paceline.recipe import DataConfig

SHAPE = (3, 32, 32)
NUM_CLASSES = 10
RECORD_BYTES = 1 + 3 * 32 * 32
NORMALIZATION = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))  # of the training images
AUGMENTATION = Augmentation(pad=4, flip=True)


def load_cifar10(config: DataConfig, seed: int) -> Data:
    """Load CIFAR-10; download missing files if `config.download` is set. Samples keep the order of the files."""
    paths = obtain(PUBLISHED["cifar10"], data_directory(config.dir), may_download=config.download)
    train = [path for file, path in paths.items() if file.startswith("data_batch")]
    return Data(
        train=_images(train, config, AUGMENTATION if config.augment else None, seed),
        test=_images([paths["test_batch.bin"]], config, None, seed),
        shape=SHAPE,
        num_classes=NUM_CLASSES,
    )


def _images(paths: list[Path], config: DataConfig, augmentation: Augmentation | None, seed: int) -> InMemory:
    for path in paths:
        if path.stat().st_size % RECORD_BYTES:
            raise UsageError(
                f"data file {path} is not a whole number of {RECORD_BYTES}-byte records; download it again"
            )
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, RECORD_BYTES) for path in paths])
    if records[:, 0].max(initial=0) >= NUM_CLASSES:
        raise UsageError(
            f"the data files in {paths[0].parent} have the label {records[:, 0].max()}, but there are {NUM_CLASSES} "
            "classes; download them again"
        )
    return InMemory(
        torch.from_numpy(records[:, 1:].reshape(-1, *SHAPE)),
        torch.from_numpy(records[:, 0].astype(np.int64)),
        normalization=NORMALIZATION if config.normalize else None,
        augmentation=augmentation,
        seed=seed,
    )
