"""Folders of images: layout, decoding, cropping, and error messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paceline.data import Data, load_data
from paceline.data.image_folder import centre_crop, random_crop
from paceline.data.sharding import epoch_generator
from paceline.errors import BadSampleError, UsageError
from paceline.recipe import DataConfig


def save(path: Path, seed: int = 0, size: tuple[int, int] = (24, 18), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(3):
        save(tmp_path / "train" / "zebra" / f"{number}.png", number)
        save(tmp_path / "val" / "ant" / f"{number}.png", number + 10)
    for number, suffix in enumerate(("JPEG", "jpg", "bmp", "webp", "png")):
        save(tmp_path / "train" / "ant" / f"{number}.{suffix}", number + 20, mode="L" if suffix == "png" else "RGB")
    (tmp_path / "train" / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "ant" / ".hidden.png").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    return tmp_path


def load(root: Path, *, seed: int = 0, augment: bool = False, normalize: bool = True, image_size: int = 8) -> Data:
    config = DataConfig(name=f"folder:{root}", augment=augment, normalize=normalize, image_size=image_size)
    return load_data(config, seed=seed)


def test_classes_are_sorted_and_samples_take_them_in_turn(root: Path) -> None:
    data = load(root)
    values, labels = data.train.batch(torch.arange(8), 0)
    assert values.shape == (8, 3, 8, 8)
    assert values.dtype is torch.float32
    assert values.is_contiguous()
    assert labels.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]
    assert (len(data.test), data.shape, data.num_classes) == (3, (3, 8, 8), 2)
    assert data.test.batch(torch.arange(3), 0)[1].tolist() == [0, 0, 0]


def test_test_images_are_resized_and_cropped_in_the_middle(root: Path) -> None:
    values, _ = load(root, normalize=False).test.batch(torch.tensor([2]), 0)
    with Image.open(root / "val" / "ant" / "2.png") as image:
        resized = image.resize((12, 9), Image.Resampling.BILINEAR)  # 24x18 with the shorter side 8 * 256 / 224
    expected = torch.from_numpy(np.array(resized))[0:8, 2:10].permute(2, 0, 1).float() / 255
    assert torch.equal(values[0], expected)


def test_normalisation_is_imagenet_s(root: Path) -> None:
    plain, normal = (load(root, normalize=on).test.batch(torch.arange(3), 0)[0] for on in (False, True))
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    assert torch.allclose(normal * std + mean, plain, atol=1e-6)  # rounding of float32


def test_augmentation_depends_on_seed_epoch_and_index_alone(root: Path) -> None:
    together = load(root, augment=True).train.batch(torch.arange(8), 3)[0]
    apart = load(root, augment=True)
    for index in (5, 0, 7):
        assert torch.equal(apart.train.batch(torch.tensor([index]), 3)[0][0], together[index])
    assert not torch.equal(apart.train.batch(torch.arange(8), 4)[0], together)
    assert not torch.equal(load(root, augment=True, seed=1).train.batch(torch.arange(8), 3)[0], together)
    assert torch.equal(apart.test.batch(torch.arange(3), 3)[0], apart.test.batch(torch.arange(3), 4)[0])


def test_samples_are_cropped_and_mirrored_each_in_its_own_way(tmp_path: Path) -> None:
    ramp = np.broadcast_to(np.linspace(0, 255, 40).astype(np.uint8)[None, :, None], (30, 40, 3))
    for split, count in (("train", 20), ("val", 1)):
        (tmp_path / split / "ramp").mkdir(parents=True)
        for number in range(count):
            Image.fromarray(ramp).save(tmp_path / split / "ramp" / f"{number:02}.png")
    values = load(tmp_path, augment=True, normalize=False).train.batch(torch.arange(20), 0)[0]
    slopes = values[:, 0, 0, -1] - values[:, 0, 0, 0]
    assert len(set(slopes.abs().tolist())) > 10, "the same file 20 times must be cropped in many ways"
    assert (slopes > 0).any()
    assert (slopes < 0).any()


def test_an_empty_shard_is_an_empty_batch(root: Path) -> None:
    values, labels = load(root, augment=True).train.batch(torch.tensor([], dtype=torch.int64), 0)
    assert values.shape == (0, 3, 8, 8)
    assert labels.shape == (0,)


def test_without_augmentation_epochs_are_alike(root: Path) -> None:
    train = load(root).train
    assert torch.equal(train.batch(torch.arange(8), 0)[0], train.batch(torch.arange(8), 1)[0])


@pytest.mark.parametrize(("width", "height"), [(500, 375), (32, 32), (1000, 10), (10, 1000), (1, 1), (2, 700)])
def test_random_crops_lie_inside_the_image(width: int, height: int) -> None:
    mirrored, areas = [], []
    for seed in range(200):
        (left, top, right, bottom), mirror = random_crop(width, height, epoch_generator(seed, 0))
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        areas.append((right - left) * (bottom - top) / (width * height))
        mirrored.append(mirror)
    assert 60 < sum(mirrored) < 140  # half of 200, give or take 5 standard deviations
    if (width, height) == (500, 375):
        assert min(areas) < 0.2 < 0.8 < max(areas)


def test_a_centre_crop_of_any_shape_has_the_size() -> None:
    for size in [(500, 375), (10, 1000), (1, 1), (3, 2)]:
        assert centre_crop(Image.new("RGB", size), 8).size == (8, 8)


def test_a_test_folder_serves_where_there_is_no_val(root: Path) -> None:
    (root / "val").rename(root / "test")
    assert len(load(root).test) == 3


def test_a_file_that_is_no_image_is_named(root: Path) -> None:
    (root / "train" / "ant" / "4.png").write_bytes(b"not an image")
    with pytest.raises(BadSampleError, match=r"image .*/4\.png cannot be decoded \(no known image format\); repair or"):
        load(root).train.batch(torch.arange(8), 0)


def test_a_truncated_image_is_named(root: Path) -> None:
    path = root / "val" / "ant" / "1.png"
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(BadSampleError, match=r"image .*val/ant/1\.png cannot be decoded"):
        load(root).test.batch(torch.arange(3), 0)


def test_wrong_layouts_are_explained(root: Path) -> None:
    with pytest.raises(UsageError, match="names no folder; write folder:PATH"):
        load_data(DataConfig(name="folder:"), seed=0)
    with pytest.raises(UsageError, match=r"data folder .*/nowhere does not exist; it should have .*nowhere/train/"):
        load(root / "nowhere")
    (root / "val").rename(root / "validation")
    with pytest.raises(UsageError, match=r"has no val or test folder; put images in .*/val/ or .*/test/CLASS"):
        load(root)
    (root / "val").mkdir()
    with pytest.raises(UsageError, match=r"val has no class folders in it; put each class's images in a folder"):
        load(root)
    (root / "val" / "ant").mkdir()
    with pytest.raises(UsageError, match=r"val/ant has no images in it; expected files that end in \.jpg"):
        load(root)
    (root / "val" / "ant").rename(root / "val" / "bee")
    save(root / "val" / "bee" / "0.png")
    with pytest.raises(UsageError, match=r"val has class 'bee', which .*train does not have; use the same classes"):
        load(root)
