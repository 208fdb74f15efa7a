"""Load MNIST from its published IDX files, or a small class-balanced subset that the package includes."""

from __future__ import annotations

import gzip
import io
import zlib
from importlib import resources
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.base import Data
from paceline.data.download import obtain
from paceline.data.in_memory import Augmentation, InMemory, Normalization
from paceline.data.published import PUBLISHED, data_directory
from paceline.errors import UsageError
from paceline.recipe import DataConfig

NORMALIZATION = Normalization(mean=(0.1307,), std=(0.3081,))  # of the 60,000 training images
AUGMENTATION = Augmentation(pad=2, flip=False)  # a mirrored digit is not a digit
NUM_CLASSES = 10
MOST_IDX_BYTES = 1 << 28  # five times the largest file of MNIST

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def load_mnist(config: DataConfig, seed: int) -> Data:
    """Load MNIST from its four files, plain or gzipped; download missing files if `config.download` is set."""
    paths = obtain(PUBLISHED["mnist"], data_directory(config.dir), may_download=config.download)
    return _data({file: (str(path), path.read_bytes()) for file, path in paths.items()}, config, seed)


def load_mnist_mini(config: DataConfig, seed: int) -> Data:
    """Load the included subset: 2,000 training and 500 test images.

    The first 10 * N images of each set contain N of each digit.
    """
    folder = resources.files("paceline.data") / "files"
    names = {file: f"mnist-mini-{file}.gz" for file in (*TRAIN, *TEST)}
    return _data({file: (name, (folder / name).read_bytes()) for file, name in names.items()}, config, seed)


def _data(contents: dict[str, tuple[str, bytes]], config: DataConfig, seed: int) -> Data:
    normalization = NORMALIZATION if config.normalize else None
    augmentation = AUGMENTATION if config.augment else None
    sets = []
    for (images_file, labels_file), set_augmentation in ((TRAIN, augmentation), (TEST, None)):
        images = read_idx(*contents[images_file], num_dimensions=3)
        labels = read_idx(*contents[labels_file], num_dimensions=1)
        if len(images) != len(labels):
            raise UsageError(
                f"data file {contents[images_file][0]} has {len(images)} images, "
                f"but {contents[labels_file][0]} has {len(labels)} labels; download both again"
            )
        if labels.max(initial=0) >= NUM_CLASSES:
            raise UsageError(
                f"data file {contents[labels_file][0]} has the label {labels.max()}, but there are {NUM_CLASSES} "
                "classes; download it again"
            )
        sets.append(
            InMemory(
                torch.from_numpy(images)[:, None],
                torch.from_numpy(labels),
                normalization=normalization,
                augmentation=set_augmentation,
                seed=seed,
            )
        )
    return Data(train=sets[0], test=sets[1], shape=(1, *images.shape[1:]), num_classes=NUM_CLASSES)


def read_idx(name: str, content: bytes, *, num_dimensions: int) -> NDArray[np.uint8]:
    """Return the values of an IDX file, which may be gzip-compressed. `name` is for error messages."""
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as file:  # a short file can decompress to any length
                content = file.read(MOST_IDX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"data file {name} cannot be decompressed ({error}); download it again") from None
    # The header has two zero bytes, 8 (the type uint8), the number of dimensions, and each size as a big-endian int32.
    magic = bytes((0, 0, 8, num_dimensions))
    if content[:4] != magic:
        raise UsageError(f"data file {name} begins with {content[:4].hex()}, not {magic.hex()}; download it again")
    header_bytes = 4 + 4 * num_dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header_bytes, 4)]
    expected_bytes = header_bytes + prod(shape)
    if len(content) != expected_bytes or max(shape) > len(content):  # without values, other sizes may be anything
        raise UsageError(
            f"data file {name} should have {expected_bytes} bytes ({'x'.join(map(str, shape))} values), "
            f"but has {len(content)}; download it again"
        )
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape).copy()
