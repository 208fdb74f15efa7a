"""Generate random but learnable data of any shape: a prototype per class plus noise."""

from __future__ import annotations

import re
from math import prod

import torch

from paceline.data.base import Data, Tensors
from paceline.data.sharding import epoch_generator
from paceline.errors import UsageError
from paceline.recipe import DataConfig

DEFAULT_TRAIN_SAMPLES = 2_000
DEFAULT_TEST_SAMPLES = 500
MAX_BYTES = 4 << 30  # of all samples, which every worker holds in memory

# Prototypes, training set and test set each have their own generator, so that the test set does not depend on the
# number of training samples. The offset is added to the seed, so that the data is independent of shuffling.
PROTOTYPES, TRAIN, TEST = range(3)
SEED_OFFSET = 0xDA7A


def load_synthetic(config: DataConfig, seed: int) -> Data:
    """Generate the data `synthetic:SHAPExCLASSES`: float32 values of unit variance.

    Sample i has class i modulo the number of classes. The settings for augmentation and normalisation are ignored.
    """
    shape, num_classes = parse(config.name)
    num_train = config.train_samples or DEFAULT_TRAIN_SAMPLES
    num_test = config.test_samples or DEFAULT_TEST_SAMPLES
    num_bytes = 4 * prod(shape) * (num_train + num_test + num_classes)
    if num_bytes > MAX_BYTES:
        raise UsageError(
            f"data {config.name!r} with {num_train} training and {num_test} test samples takes {num_bytes} bytes "
            f"in every worker, more than {MAX_BYTES}; use fewer samples (--train-samples, --test-samples) "
            f"or a smaller shape"
        )
    prototypes = torch.randn(num_classes, *shape, generator=epoch_generator(seed + SEED_OFFSET, PROTOTYPES))

    def samples(num_samples: int, part: int) -> Tensors:
        labels = torch.arange(num_samples) % num_classes
        values = torch.randn(num_samples, *shape, generator=epoch_generator(seed + SEED_OFFSET, part))
        return Tensors(values.add_(prototypes[labels]).div_(2**0.5), labels)

    return Data(samples(num_train, TRAIN), samples(num_test, TEST), shape=shape, num_classes=num_classes)


def parse(name: str) -> tuple[tuple[int, ...], int]:
    """Return the shape and the number of classes in a name such as `synthetic:3x32x32x10`."""
    text = name.partition(":")[2]
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})+", text):
        raise UsageError(
            f"data {name!r} is not synthetic:SHAPExCLASSES; "
            f"write whole numbers with an x between, such as synthetic:3x32x32x10 or synthetic:8x4"
        )
    *shape, num_classes = (int(word) for word in text.split("x"))
    if num_classes < 2:
        raise UsageError(f"data {name!r} must have 2 or more classes (its last number), not {num_classes}")
    return tuple(shape), num_classes
