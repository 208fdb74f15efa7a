"""Data set of image files in one folder per class (ImageNet's layout), decoded batch by batch."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from paceline.data.bad_samples import HINT, SKIP, OnProgress, check_some_are_left, hint_for, ignore_progress
from paceline.data.base import BadSample, Batch, Data, Dataset
from paceline.data.image_files import bombs_refused, decode, find_bad_images
from paceline.data.in_memory import AUGMENT_SEED_OFFSET, Normalization, float_images
from paceline.data.sharding import epoch_generator
from paceline.errors import UsageError
from paceline.recipe import DataConfig

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
TEST_NAMES = ("val", "test")
NORMALIZATION = Normalization(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # of ImageNet
RESIZE_RATIO = 256 / 224  # shorter side of a resized test image / side of its crop
AREA_RANGE = (0.08, 1.0)  # of a random crop, as a fraction of the image
ASPECT_RANGE = (3 / 4, 4 / 3)
NUM_CROP_TRIES = 10
NUM_THREADS = 4  # decoding threads of each worker: Pillow releases the interpreter lock while decoding

Crop = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class FolderSamples:
    """The image files of a folder with their classes, by split (`train` and `test`)."""

    root: Path
    samples: dict[str, list[tuple[Path, int]]]
    num_classes: int


def list_folder(config: DataConfig) -> FolderSamples:
    """List the images PATH/train/CLASS/* and PATH/val/CLASS/* (or PATH/test/CLASS/*), without opening them.

    Classes are numbered in the order of their names. Samples alternate between classes, so that the first N samples
    contain all classes evenly.
    """
    path = config.name.partition(":")[2]
    if not path:
        raise UsageError("data 'folder:' names no folder; write folder:PATH, where PATH has train/CLASS/ in it")
    root = Path(path).expanduser()
    train = _find_split(root, ("train",))
    test = _find_split(root, TEST_NAMES)
    classes = _images_by_class(train)
    test_classes = _images_by_class(test)
    unknown_classes = sorted(set(test_classes) - set(classes))
    if unknown_classes:
        raise UsageError(
            f"{test} has class {unknown_classes[0]!r}, which {train} does not have; use the same classes in both"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    return FolderSamples(
        root, {"train": _alternate(classes, numbers), "test": _alternate(test_classes, numbers)}, len(classes)
    )


def load_folder(config: DataConfig, seed: int) -> Data:
    """Load images of the folder that the config names."""
    found = list_folder(config)
    samples, skipped = found.samples, list[BadSample]()
    if config.on_bad_sample == SKIP:
        limits = {"train": config.train_samples, "test": config.test_samples}
        samples = {split: pairs[: limits[split]] for split, pairs in samples.items()}
        skipped = find_bad_samples(FolderSamples(found.root, samples, found.num_classes))
        bad = {(one.split, one.name) for one in skipped}
        for split, pairs in samples.items():
            samples[split] = [(path, label) for path, label in pairs if (split, str(path)) not in bad]
            check_some_are_left(len(samples[split]), [one for one in skipped if one.split == split])
    size, normalization = config.image_size, NORMALIZATION if config.normalize else None
    settings: dict[str, Any] = {
        "size": size,
        "normalization": normalization,
        "hint": hint_for(config.on_bad_sample),
    }
    return Data(
        train=ImageFolder(samples["train"], augment=config.augment, seed=seed, **settings),
        test=ImageFolder(samples["test"], **settings),
        shape=(3, size, size),
        num_classes=found.num_classes,
        skipped=tuple(skipped),
    )


def find_bad_samples(folder: FolderSamples, on_progress: OnProgress = ignore_progress) -> list[BadSample]:
    """Return the images of a folder that cannot be decoded."""
    paths = [path for pairs in folder.samples.values() for path, _ in pairs]
    reasons = find_bad_images(folder.root, paths, on_progress)
    return [
        BadSample(split, str(path), reasons[path])
        for split, pairs in folder.samples.items()
        for path, _ in pairs
        if path in reasons
    ]


class ImageFolder(Dataset):
    """Data set of image files and their classes."""

    def __init__(
        self,
        samples: list[tuple[Path, int]],
        *,
        size: int,
        normalization: Normalization | None = None,
        augment: bool = False,
        seed: int = 0,
        hint: str = HINT,
    ) -> None:
        self._paths = [path for path, _ in samples]
        self._labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        self._size = size
        self._normalization = normalization
        self._augment = augment
        self._seed = seed
        self._hint = hint  # what to do about an image that cannot be decoded

    def __len__(self) -> int:
        return len(self._paths)

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        pixels = np.empty((len(indices), self._size, self._size, 3), np.uint8)
        with bombs_refused(), ThreadPoolExecutor(NUM_THREADS) as threads:
            decoded = threads.map(lambda index: self._pixels(index, epoch), indices.tolist())
            for place, image in enumerate(decoded):
                pixels[place] = image
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        return float_images(images, self._normalization), self._labels[indices]

    def labels(self) -> Tensor:
        return self._labels

    def _pixels(self, index: int, epoch: int) -> NDArray[np.uint8]:
        image = decode(self._paths[index], self._hint)
        if not self._augment:
            return np.asarray(centre_crop(image, self._size))
        # Every sample has its own seed. The multiplier exceeds every index, so that no two pairs (seed, index) collide.
        generator = epoch_generator((self._seed + AUGMENT_SEED_OFFSET) * 1_000_000_007 + index, epoch)
        crop, mirrored = random_crop(image.width, image.height, generator)
        image = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=crop)
        pixels = np.asarray(image)
        return pixels[:, ::-1] if mirrored else pixels


def centre_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize an image so that its shorter side is 256/224 of `size`; return the central `size` x `size` pixels."""
    scale = RESIZE_RATIO * size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    left, top = (width - size) // 2, (height - size) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def random_crop(width: int, height: int, generator: torch.Generator) -> tuple[Crop, bool]:
    """Return a crop of random area, aspect ratio and position, and whether to mirror it.

    If none of `NUM_CROP_TRIES` random crops fits the image, the crop is at the centre.
    """
    draws = torch.rand(NUM_CROP_TRIES, 2, generator=generator).tolist()
    x, y, mirror = torch.rand(3, generator=generator).tolist()
    low, high = (math.log(aspect) for aspect in ASPECT_RANGE)
    for area_draw, aspect_draw in draws:
        area = width * height * (AREA_RANGE[0] + area_draw * (AREA_RANGE[1] - AREA_RANGE[0]))
        aspect = math.exp(low + aspect_draw * (high - low))
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            left, top = int(x * (width - crop_width + 1)), int(y * (height - crop_height + 1))
            return (left, top, left + crop_width, top + crop_height), mirror < 0.5
    crop_width = max(1, min(width, round(height * ASPECT_RANGE[1])))
    crop_height = max(1, min(height, round(width / ASPECT_RANGE[0])))
    left, top = (width - crop_width) // 2, (height - crop_height) // 2
    return (left, top, left + crop_width, top + crop_height), mirror < 0.5


def _find_split(root: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if os.path.isdir(root / name):
            return root / name
    places = " or ".join(f"{root / name}{os.sep}" for name in names)
    if not os.path.isdir(root):
        raise UsageError(f"data folder {root} does not exist; it should have {places} with a folder per class")
    raise UsageError(f"data folder {root} has no {' or '.join(names)} folder; put images in {places}CLASS")


def _images_by_class(split: Path) -> dict[str, list[Path]]:
    """Return the image files of every class, by class name. Classes and files are sorted. Hidden ones are ignored."""
    folders = _visible_entries(split, Path.is_dir)
    if not folders:
        raise UsageError(f"{split} has no class folders in it; put each class's images in a folder {split / 'CLASS'}")
    classes = {
        folder.name: [path for path in _visible_entries(folder, _is_file_or_link) if path.suffix.lower() in SUFFIXES]
        for folder in folders
    }
    for name, images in classes.items():
        if not images:
            raise UsageError(f"{split / name} has no images in it; expected files that end in {', '.join(SUFFIXES)}")
    return classes


def _is_file_or_link(path: Path) -> bool:
    """Return whether a path is a file, or a link to a file or to nothing, which `decode` reports."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _visible_entries(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and is_wanted(path))
    except OSError as error:
        raise UsageError(f"data folder {folder} cannot be read ({error.strerror})") from None


def _alternate(classes: dict[str, list[Path]], numbers: dict[str, int]) -> list[tuple[Path, int]]:
    ranked = [(place, numbers[name], path) for name, images in classes.items() for place, path in enumerate(images)]
    return [(path, number) for _, number, path in sorted(ranked)]
