"""Write the MNIST subset of the package from the four published files.

usage: make_mnist_mini.py MNIST_DIR [OUTPUT_DIR]

Takes 200 training and 50 test images of each digit, evenly spaced through that digit's images in the published
order, and writes them digit by digit in turn (0, 1, ..., 9, 0, 1, ...). The same input gives the same bytes.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.data.download import obtain
from paceline.data.mnist import NUM_CLASSES, TEST, TRAIN, read_idx
from paceline.data.published import PUBLISHED
from paceline.errors import PacelineError

SHIPPED = Path(__file__).parents[1] / "src" / "paceline" / "data" / "files"
NUM_TRAIN_PER_CLASS = 200
NUM_TEST_PER_CLASS = 50


def main(source: Path, destination: Path) -> None:
    paths = obtain(PUBLISHED["mnist"], source, may_download=False)
    for (images_file, labels_file), num_per_class in ((TRAIN, NUM_TRAIN_PER_CLASS), (TEST, NUM_TEST_PER_CLASS)):
        images = read_idx(images_file, paths[images_file].read_bytes(), num_dimensions=3)
        labels = read_idx(labels_file, paths[labels_file].read_bytes(), num_dimensions=1)
        chosen = choose(labels, num_per_class)
        for file, values in ((images_file, images[chosen]), (labels_file, labels[chosen])):
            target = destination / f"mnist-mini-{file}.gz"
            target.write_bytes(compressed_idx(values))
            print(f"{target.name}: {target.stat().st_size} bytes")


def choose(labels: NDArray[np.uint8], num_per_class: int) -> NDArray[np.intp]:
    """Return indices of evenly spaced samples of each class, one class after the other in turn."""
    rows = []
    for digit in range(NUM_CLASSES):
        places = np.flatnonzero(labels == digit)
        rows.append(places[np.arange(num_per_class) * len(places) // num_per_class])
    return np.stack(rows, axis=1).reshape(-1)


def compressed_idx(values: NDArray[np.uint8]) -> bytes:
    header = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    # mtime=0: a date inside the file would make every run's bytes different.
    return gzip.compress(header + values.tobytes(), compresslevel=9, mtime=0)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else SHIPPED)
    except PacelineError as error:
        sys.exit(f"error: {error}")
