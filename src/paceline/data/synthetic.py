"""Random data that can be learned: a prototype per class, and noise around it. For any shape, without files."""

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
MAX_BYTES = 4 << 30  # every worker holds all of it

# Each part has a generator of its own, so that more training samples leave the test set as it was; and a seed
# of their own keeps all of them apart from the shuffling.
PROTOTYPES, TRAIN, TEST = range(3)
SEED_OFFSET = 0xDA7A


def load_synthetic(config: DataConfig, seed: int) -> Data:
    """Samples of `synthetic:SHAPExCLASSES`: float32 values of about unit variance, classes in turn.

    Any number of samples can be asked for. Augmentation and normalisation do not apply.
    """
    shape, num_classes = parse(config.name)
    num_train = config.train_samples or DEFAULT_TRAIN_SAMPLES
    num_test = config.test_samples or DEFAULT_TEST_SAMPLES
    num_bytes = 4 * prod(shape) * (num_train + num_test + num_classes)
    if num_bytes > MAX_BYTES:
        raise UsageError(
            f"data {config.name!r} with {num_train} training and {num_test} test samples takes {num_bytes} bytes "
            f"in every worker, more than {MAX_BYTES}; ask for fewer samples (--train-samples, --test-samples) "
            f"or a smaller shape"
        )
    prototypes = torch.randn(num_classes, *shape, generator=epoch_generator(seed + SEED_OFFSET, PROTOTYPES))

    def samples(num_samples: int, part: int) -> Tensors:
        labels = torch.arange(num_samples) % num_classes
        values = torch.randn(num_samples, *shape, generator=epoch_generator(seed + SEED_OFFSET, part))
        return Tensors(values.add_(prototypes[labels]).div_(2**0.5), labels)

    return Data(samples(num_train, TRAIN), samples(num_test, TEST), shape=shape, num_classes=num_classes)


def parse(name: str) -> tuple[tuple[int, ...], int]:
    """Shape and number of classes in `synthetic:3x32x32x10`."""
    text = name.partition(":")[2]
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})+", text):
        raise UsageError(
            f"data {name!r} is not synthetic:SHAPExCLASSES; "
            f"write whole numbers with an x between, such as synthetic:3x32x32x10 or synthetic:8x4"
        )
    *shape, num_classes = (int(word) for word in text.split("x"))
    if num_classes < 2:
        raise UsageError(f"data {name!r} has {num_classes} class; the last number is the classes and must be 2 or more")
    return tuple(shape), num_classes
