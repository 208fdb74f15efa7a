"""Samples that cannot be read: who is named, what is left out, and `paceline data check`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import run_command
from helpers import on_threads
from paceline.data import Data, load_data
from paceline.data.image_files import bombs_refused, decode, find_bad_images
from paceline.errors import BadSampleError, RunError, UsageError
from paceline.recipe import DataConfig, Recipe
from paceline.study.preflight import preflight
from paceline.train.context import Context
from paceline.train.job import make_trainer, train_job

NUM_TRAIN, NUM_TEST, NUM_BAD = 20, 8, 5  # images, with the bad ones
FAILING = """
import torch

class Failing:
    def __init__(self, count, bad):
        self.count, self.bad = count, bad

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"no record {index}")
        return torch.full((1, 28, 28), index / 10), index % 3

def make():
    return Failing(12, {0, 5}), Failing(6, {5})

def none():
    return Failing(3, {0, 1, 2}), Failing(6, {})
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images, five of which cannot be decoded, each for its own reason."""
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    root = tmp_path / "images"
    for split, count in (("train", NUM_TRAIN), ("val", NUM_TEST)):
        for number in range(count):
            path = root / split / ("ant", "bee")[number % 2] / f"{number:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 256, (36, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    ant, bee = root / "train" / "ant", root / "train" / "bee"
    (ant / "02.jpg").write_bytes((ant / "02.jpg").read_bytes()[:700])
    (bee / "03.jpg").write_bytes(b"")
    (bee / "05.jpg").unlink()
    (bee / "05.jpg").symlink_to("nowhere.jpg")
    Image.new("1", (120, 100)).save(ant / "04.png")
    (ant / "04.jpg").unlink()
    (root / "val" / "bee" / "01.jpg").write_text("not an image")
    return root


def load(root: Path, **changes: Any) -> Data:
    config = DataConfig(name=f"folder:{root}", image_size=8, normalize=False, **{"on_bad_sample": "skip", **changes})
    return load_data(config, seed=0)


def test_bad_images_are_left_out_and_named_with_the_reason(root: Path) -> None:
    data = load(root)
    assert (len(data.train), len(data.test), len(data.skipped)) == (NUM_TRAIN - 4, NUM_TEST - 1, NUM_BAD)
    reasons = {Path(bad.name).relative_to(root).as_posix(): bad.reason for bad in data.skipped}
    assert [bad.split for bad in data.skipped] == ["train"] * 4 + ["test"]
    assert reasons["train/ant/02.jpg"].startswith("image file is truncated")
    assert reasons["train/bee/03.jpg"] == "the file is empty"
    assert reasons["train/bee/05.jpg"] == "a link to nowhere.jpg, which does not exist"
    assert reasons["train/ant/04.png"].startswith("Image size (12000 pixels) exceeds limit of")
    assert reasons["val/bee/01.jpg"] == "no known image format"
    images, labels = data.train.batch(torch.arange(len(data.train)), 0)
    assert images.shape == (16, 3, 8, 8)
    assert labels.bincount().tolist() == [8, 8]
    assert torch.equal(data.train.labels(), labels)


@pytest.mark.parametrize("name", ["train/ant/02.jpg", "train/bee/03.jpg", "train/bee/05.jpg", "train/ant/04.png"])
def test_by_default_a_bad_image_is_an_error_that_names_it(root: Path, name: str) -> None:
    train = load(root, on_bad_sample="stop").train
    with pytest.raises(BadSampleError, match=r"cannot be decoded \(.*\); repair or remove it, or use --on-bad-sample"):
        train.batch(torch.arange(len(train)), 0)
    with pytest.raises(BadSampleError, match=name), bombs_refused():
        decode(root / name)


def test_an_image_that_breaks_after_the_check_ends_the_run_with_a_sentence(root: Path) -> None:
    data = load(root)
    (root / "train" / "ant" / "00.jpg").unlink()
    with pytest.raises(BadSampleError, match=r"00\.jpg cannot be decoded \(No such .*\); --on-bad-sample skip leaves"):
        data.train.batch(torch.arange(16), 0)


def test_only_the_first_samples_are_checked_if_only_they_are_used(root: Path) -> None:
    data = load(root, train_samples=4, test_samples=1)
    assert (len(data.train), len(data.test), len(data.skipped)) == (2, 1, 2)
    with pytest.raises(UsageError, match=r"train_samples is 21, but .* has 20 train samples"):
        load(root, train_samples=21)


def test_a_folder_without_any_good_image_is_refused(root: Path) -> None:
    for path in (root / "val").rglob("*.jpg"):
        path.write_text("not an image")
    with pytest.raises(RunError, match=r"none of 8 test samples can be read; .*/00\.jpg: no known image format"):
        load(root)


def test_results_are_kept_until_a_file_changes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((root / "train").rglob("*.jpg"))
    counts: list[tuple[int, int]] = []
    first = find_bad_images(root, paths, lambda done, total: counts.append((done, total)))
    assert counts[0] == (0, len(paths))
    assert counts[-1] == (len(paths), len(paths))
    counts.clear()
    assert find_bad_images(root, paths, lambda done, total: counts.append((done, total))) == first
    assert counts[0] == (len(paths) - 1, len(paths))  # a link to nothing is checked every time
    repaired = next(path for path in paths if path.name == "03.jpg")
    repaired.write_bytes((root / "train" / "ant" / "00.jpg").read_bytes())
    assert find_bad_images(root, paths).keys() == first.keys() - {repaired}
    (file,) = (root.parent / "cache" / "checked-images").iterdir()
    for damage in (b"", b"{", b"[1]", json.dumps({"pillow": "0.1", "files": {}}).encode()):
        file.write_bytes(damage)
        assert find_bad_images(root, paths).keys() == first.keys() - {repaired}
    monkeypatch.setenv("PACELINE_DATA", str(repaired))  # a file, so that no result can be kept
    assert find_bad_images(root, paths).keys() == first.keys() - {repaired}


def test_images_are_turned_upright(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    upright = {1: pixels, 3: pixels[::-1, ::-1], 6: np.rot90(pixels, -1), 8: np.rot90(pixels), 2: pixels[:, ::-1]}
    for value, expected in upright.items():
        for suffix, options in (("png", {}), ("tif", {"compression": "tiff_lzw"})):
            image = Image.fromarray(pixels)
            exif = image.getexif()
            exif[0x0112] = value
            path = tmp_path / f"{value}.{suffix}"
            image.save(path, exif=exif, **options)
            assert np.array_equal(np.asarray(decode(path))[:, :, 0], expected), (value, suffix)


def test_an_image_with_damaged_exif_data_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    Image.new("RGB", (6, 4)).save(path, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09broken")
    with bombs_refused():
        assert decode(path).size == (6, 4)


def test_workers_train_on_the_good_images_and_report_the_others(root: Path) -> None:
    changes = {"workers": 2, "data.name": f"folder:{root}", "data.image_size": 28, "train.batch_size": 8}
    recipe = Recipe().replace({**changes, "train.epochs": 1, "data.on_bad_sample": "skip", "model.name": "lenet5"})
    facts = preflight(recipe)
    assert (facts.num_train_samples, facts.num_test_samples, facts.total_steps) == (16, 7, 2)
    assert len(facts.skipped) == NUM_BAD
    workers = on_threads(2, train_job, recipe=recipe, strategy="overlap", checkpoint="")
    assert [(len(worker.loss), sum(worker.num_samples), worker.skipped_samples) for worker in workers] == [
        (2, 8, 5)
    ] * 2
    assert workers[0].parameter_digest == workers[1].parameter_digest


def test_workers_that_leave_out_different_samples_are_refused() -> None:
    recipe = Recipe().replace({"workers": 2, "data.name": f"{__file__}:differing_data", "data.on_bad_sample": "skip"})
    with pytest.raises(RunError, match="worker 1 cannot read the same samples as worker 0"):
        on_threads(2, start, recipe=recipe)


_NUM_CALLS = iter(range(1000))


def differing_data() -> Any:
    """Return data whose bad sample is another one in every call."""
    bad = next(_NUM_CALLS) % 2

    class Items:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            if index == bad:
                raise OSError("bad")
            return torch.zeros(1, 28, 28), 0

    return Items(), Items()


def start(context: Context, recipe: Recipe) -> None:
    make_trainer(context, recipe, "all-reduce")


def test_samples_of_the_users_data_that_raise_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "failing.py"
    file.write_text(FAILING)
    data = load_data(DataConfig(name=f"{file}:make", on_bad_sample="skip"), seed=0)
    assert (len(data.train), len(data.test), data.shape, data.num_classes) == (10, 5, (1, 28, 28), 3)
    assert [tuple(bad) for bad in data.skipped] == [
        ("train", "sample 0", "OSError: no record 0"),
        ("train", "sample 5", "OSError: no record 5"),
        ("test", "sample 5", "OSError: no record 5"),
    ]
    assert data.train.batch(torch.arange(10), 0)[1].tolist() == [1, 2, 0, 1, 0, 1, 2, 0, 1, 2]
    with pytest.raises(RunError, match="none of 3 train samples can be read; sample 0: OSError: no record 0"):
        load_data(DataConfig(name=f"{file}:none", on_bad_sample="skip"), seed=0)
    with pytest.raises(BadSampleError, match="raised OSError at sample 0: no record 0; repair or remove it, or use"):
        load_data(DataConfig(name=f"{file}:make"), seed=0)


def test_data_check_lists_bad_images(root: Path, tmp_path: Path) -> None:
    said = run_command("data", "check", f"folder:{root}", "--json", str(tmp_path / "check.json"), width=200)
    assert said.code == 1
    assert "a link to nowhere.jpg, which does not exist" in said.out
    assert said.out.endswith("5 of 28 samples cannot be read.\n")
    found = json.loads((tmp_path / "check.json").read_text())
    assert (found["schema"], found["data"], found["samples"]) == (1, f"folder:{root}", {"train": 20, "test": 8})
    assert {bad["split"] for bad in found["bad"]} == {"train", "test"}
    assert all(os.path.lexists(bad["sample"]) and bad["reason"] for bad in found["bad"])
    for bad in found["bad"]:
        os.unlink(bad["sample"])
    said = run_command("data", "check", f"folder:{root}")
    assert (said.code, said.out) == (0, "0 of 23 samples cannot be read.\n")


def test_data_check_reads_the_users_data(tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    said = run_command("data", "check", f"{tmp_path}/failing.py:make", width=200)
    assert said.code == 1
    assert "OSError: no record 5" in said.out
    assert said.out.endswith("3 of 18 samples cannot be read.\n")


def test_data_check_refuses_other_data() -> None:
    said = run_command("data", "check", "mnist")
    assert said.code == 2
    assert "name images (folder:PATH) or your own data" in said.err


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown data\.on_bad_sample 'skp'; did you mean 'skip'"):
        DataConfig(on_bad_sample="skp")
