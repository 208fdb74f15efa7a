"""MNIST and CIFAR-10 from files: found, verified and read; and the error messages of files that are wrong.

The files are small valid ones made here, with the pins changed to match.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import os
import tarfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.data import Data, Dataset, load_data
from paceline.data.mnist import read_idx
from paceline.data.published import CIFAR10, MNIST, PUBLISHED, Pin, PublishedDataset, data_directory
from paceline.errors import UsageError
from paceline.recipe import DataConfig

REAL_DATA = os.environ.get("PACELINE_REAL_DATA", "")
needs_real_data = pytest.mark.skipif(not REAL_DATA, reason="PACELINE_REAL_DATA names no folder with mnist/ in it")


def load(name: str, directory: Path, **keys: object) -> Data:
    config = DataConfig(name=name, dir=str(directory), download=False, **keys)  # type: ignore[arg-type]
    return load_data(config, seed=0)


def labels_of(dataset: Dataset, count: int | None = None) -> list[int]:
    labels: list[int] = dataset.batch(torch.arange(count or len(dataset)), 0)[1].tolist()
    return labels


def sha256(content: bytes) -> Pin:
    return Pin(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")


def md5(content: bytes) -> Pin:
    return Pin(len(content), f"md5:{hashlib.md5(content).hexdigest()}")


def idx(values: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, values.ndim)) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the contents of the four files, with 30 and 20 images, and expect their digests during the test."""
    rng = np.random.default_rng(0)
    contents = {}
    for split, count in (("train", 30), ("t10k", 20)):
        contents[f"{split}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28)))
        contents[f"{split}-labels-idx1-ubyte"] = idx(np.arange(count) % 10)
    pin_mnist(monkeypatch, contents)
    return contents


def pin_mnist(monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]) -> None:
    files = {
        name: {name: sha256(plain), f"{name}.gz": md5(gzip.compress(plain, mtime=0))}
        for name, plain in contents.items()
    }
    monkeypatch.setitem(PUBLISHED, "mnist", dataclasses.replace(MNIST, files=files))


def write_plain(folder: Path, contents: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def write_compressed(folder: Path, contents: dict[str, bytes]) -> None:
    write_plain(folder, {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in contents.items()})


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return the contents of the six files, with 4 images each, and expect their digests during the test."""
    rng = np.random.default_rng(0)
    contents = {}
    for number, name in enumerate(CIFAR10.files):
        records = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] = (number + np.arange(4)) % 10
        contents[name] = records.tobytes()
    files = {name: {name: sha256(content)} for name, content in contents.items()}
    archive = {"cifar-10-binary.tar.gz": md5(tar_of(contents))}
    monkeypatch.setitem(PUBLISHED, "cifar10", dataclasses.replace(CIFAR10, files=files, archive=archive))
    return contents


def tar_of(contents: dict[str, bytes]) -> bytes:
    """Return an archive with unneeded files, one of which has a path outside the folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in {"readme.html": b"hello", "../outside.bin": b"bad", **contents}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=0)


# --- mnist-mini -------------------------------------------------------------------------------------------------


def test_mini_is_balanced_in_every_ten() -> None:
    data = load_data(DataConfig(name="mnist-mini"), seed=0)
    assert labels_of(data.train) == list(range(10)) * 200
    assert labels_of(data.test) == list(range(10)) * 50
    assert (data.shape, data.num_classes) == ((1, 28, 28), 10)


def test_mini_looks_like_mnist() -> None:
    data = load_data(DataConfig(name="mnist-mini"), seed=0)
    values, labels = data.train.batch(torch.arange(2000), 0)
    test_values, test_labels = data.test.batch(torch.arange(500), 0)
    assert abs(values.mean()) < 0.05  # the constants are those of all 60,000 images
    assert abs(values.std() - 1) < 0.05
    means = torch.stack([values[labels == digit].mean(0).flatten() for digit in range(10)])
    accuracy = (torch.cdist(test_values.flatten(1), means).argmin(1) == test_labels).float().mean()
    assert accuracy > 0.7  # nearest mean: 0.8 on all of MNIST, 0.1 if labels did not belong to their images


def test_mini_augments_training_images_only_and_only_by_shifting() -> None:
    plain, augmented = (
        load_data(DataConfig(name="mnist-mini", augment=augment, normalize=False), seed=0) for augment in (False, True)
    )
    indices = torch.arange(60)
    assert torch.equal(plain.test.batch(indices, 0)[0], augmented.test.batch(indices, 0)[0])
    before, after = plain.train.batch(indices, 0)[0], augmented.train.batch(indices, 0)[0]
    padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
    shifts = [padded[:, :, top : top + 28, left : left + 28] for top in range(5) for left in range(5)]
    matches = torch.stack([(shift == after).flatten(1).all(1) for shift in shifts])
    assert matches.any(0).all(), "an image is not a shifted one: mirrored, perhaps"
    assert matches.any(1).sum() > 12  # of 25 shifts, 60 images should meet most


def test_mini_ships_with_its_attribution() -> None:
    text = (resources.files("paceline.data") / "files" / "ATTRIBUTION.md").read_text()
    for words in ("Yann LeCun", "Corinna Cortes", "Attribution-Share Alike 3.0", "subset"):
        assert words in text


@needs_real_data
def test_mini_can_be_rebuilt_byte_for_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parents[2] / "scripts" / "make_mnist_mini.py"
    spec = importlib.util.spec_from_file_location("make_mnist_mini", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(Path(REAL_DATA), tmp_path)
    assert "train-images" in capsys.readouterr().out
    made = sorted(tmp_path.iterdir())
    assert len(made) == 4
    shipped = resources.files("paceline.data") / "files"
    for path in made:
        # Decompressed: another zlib may compress the same bytes otherwise.
        assert gzip.decompress(path.read_bytes()) == gzip.decompress((shipped / path.name).read_bytes())


@needs_real_data
def test_real_mnist() -> None:
    data = load("mnist", Path(REAL_DATA))
    assert (len(data.train), len(data.test), data.shape) == (60_000, 10_000, (1, 28, 28))
    assert labels_of(data.train, 10) == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert labels_of(data.test, 10) == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


# --- mnist ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_plain, write_compressed])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_mnist_is_found_in_any_of_its_places_and_forms(tmp_path: Path, mnist, folder: str, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / folder, mnist)
    data = load("mnist", tmp_path, normalize=False)
    assert labels_of(data.train) == [index % 10 for index in range(30)]
    assert len(data.test) == 20
    pixels = np.frombuffer(mnist["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(30, 1, 28, 28)
    assert torch.equal(data.train.batch(torch.arange(30), 0)[0], torch.from_numpy(pixels.copy()).float() / 255)


def test_the_default_directory_comes_from_the_environment(tmp_path: Path, mnist, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    write_plain(tmp_path, mnist)
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path))
    assert len(load_data(DataConfig(name="mnist", download=False), seed=0).train) == 30
    monkeypatch.delenv("PACELINE_DATA")
    assert data_directory() == Path.home() / ".cache" / "paceline" / "data"
    assert data_directory("~/x") == Path.home() / "x"


def test_missing_files_are_named_with_places_and_remedy(tmp_path: Path, mnist) -> None:  # type: ignore[no-untyped-def]
    write_compressed(tmp_path, mnist)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError) as raised:
        load("mnist", tmp_path)
    message = str(raised.value)
    assert message.startswith("data 'mnist' needs t10k-labels-idx1-ubyte.gz, not found in ")
    assert "train-images" not in message
    for folder in ("", "mnist", "MNIST/raw"):
        assert str(tmp_path / folder) in message
    assert "downloading is off" in message
    assert "run `paceline data fetch mnist`" in message
    assert "--data-dir" in message


@pytest.mark.parametrize("write", [write_plain, write_compressed])
def test_truncated_and_corrupt_files_are_named_with_both_sides(tmp_path: Path, mnist, write) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path, mnist)
    path = next(tmp_path.glob("train-images*"))
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    size = len(content)
    with pytest.raises(UsageError, match=rf"{path.name} has {size - 5} bytes, not the expected {size}; delete it"):
        load("mnist", tmp_path)
    path.write_bytes(content[:-5] + b"wrong")
    with pytest.raises(UsageError, match=rf"{path.name} is corrupt: its (md5|sha256) is \w+, not the expected \w+;"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train-images-idx3-ubyte": idx(np.zeros((30, 28)))}, "begins with 00000802, not 00000803; download it again"),
        ({"t10k-labels-idx1-ubyte": idx(np.zeros(20))[:-1]}, r"should have 28 bytes \(20 values\), but has 27"),
        ({"t10k-labels-idx1-ubyte": b""}, "begins with , not 00000801"),
        (
            {"t10k-labels-idx1-ubyte": idx(np.full(20, 10))},
            r"labels-idx1-ubyte has the label 10, but there are 10 classes",
        ),
        ({"train-labels-idx1-ubyte": idx(np.zeros(29))}, r"has 30 images, but .*labels-idx1-ubyte has 29 labels"),
    ],
)
def test_files_that_contradict_themselves(tmp_path: Path, mnist, monkeypatch, change, message: str) -> None:  # type: ignore[no-untyped-def]
    contents = {**mnist, **change}
    pin_mnist(monkeypatch, contents)
    write_plain(tmp_path, contents)
    with pytest.raises(UsageError, match=message):
        load("mnist", tmp_path)


def test_a_broken_gzip_stream_is_explained() -> None:
    with pytest.raises(UsageError, match=r"data file some\.gz cannot be decompressed"):
        read_idx("some.gz", gzip.compress(b"x" * 1000)[:-9], num_dimensions=1)


def test_a_short_file_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.data.mnist.MOST_IDX_BYTES", 1 << 20)
    data = gzip.compress(bytes((0, 0, 8, 1)) + (50 << 20).to_bytes(4, "big") + bytes(50 << 20))
    with pytest.raises(UsageError, match=r"should have 52428808 bytes \(52428800 values\), but has 1048577"):
        read_idx("some.gz", data, num_dimensions=1)


@pytest.mark.parametrize("sizes", [(2**32 - 1, 2**32 - 1, 0), (0, 2**31, 2**31), (2**32 - 1,) * 3])
def test_sizes_that_no_array_has_are_refused(sizes: tuple[int, int, int]) -> None:
    header = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in sizes)
    with pytest.raises(UsageError, match=r"data file some should have .* download it again"):
        read_idx("some", header, num_dimensions=3)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    assert sha256(b"").mismatch(tmp_path / "gone") == "cannot be read (No such file or directory)"
    assert Pin(tmp_path.stat().st_size, "md5:0").mismatch(tmp_path) == "cannot be read (Is a directory)"


# --- cifar10 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin"])
def test_cifar_is_read_in_order(tmp_path: Path, cifar, folder: str) -> None:  # type: ignore[no-untyped-def]
    write_plain(tmp_path / folder, cifar)
    data = load("cifar10", tmp_path, normalize=False)
    assert labels_of(data.train) == [(number + image) % 10 for number in range(5) for image in range(4)]
    assert labels_of(data.test) == [5, 6, 7, 8]
    assert (data.shape, data.num_classes) == ((3, 32, 32), 10)
    first = np.frombuffer(cifar["data_batch_1.bin"], np.uint8)[1:3073].reshape(3, 32, 32)
    assert torch.equal(data.train.batch(torch.tensor([0]), 0)[0][0], torch.from_numpy(first.copy()).float() / 255)


def test_cifar_augments_training_images_only(tmp_path: Path, cifar) -> None:  # type: ignore[no-untyped-def]
    write_plain(tmp_path, cifar)
    plain, augmented = load("cifar10", tmp_path), load("cifar10", tmp_path, augment=True)
    indices = torch.arange(4)
    assert torch.equal(plain.test.batch(indices, 0)[0], augmented.test.batch(indices, 0)[0])
    assert not torch.equal(plain.train.batch(indices, 0)[0], augmented.train.batch(indices, 0)[0])


def test_cifar_is_unpacked_from_its_archive_and_nothing_else_is(tmp_path: Path, cifar) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(tar_of(cifar))
    assert len(load("cifar10", tmp_path).train) == 20
    home = tmp_path / "cifar-10-batches-bin"
    assert sorted(path.name for path in home.iterdir()) == sorted(cifar)
    assert not list(tmp_path.rglob("outside.bin"))
    assert (tmp_path / "cifar-10-binary.tar.gz").exists(), "the user's own archive stays"


def test_a_wrong_archive_is_named(tmp_path: Path, cifar, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    archive = tmp_path / "cifar-10-binary.tar.gz"

    def write_and_pin(content: bytes) -> None:
        archive.write_bytes(content)
        pinned = dataclasses.replace(PUBLISHED["cifar10"], archive={archive.name: md5(content)})
        monkeypatch.setitem(PUBLISHED, "cifar10", pinned)

    archive.write_bytes(tar_of(cifar)[:-1])
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz has \d+ bytes, not the expected \d+"):
        load("cifar10", tmp_path)
    write_and_pin(b"this is no archive")
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz cannot be unpacked"):
        load("cifar10", tmp_path)
    write_and_pin(tar_of(cifar)[:2000])
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz cannot be unpacked"):
        load("cifar10", tmp_path)
    write_and_pin(tar_of({name: content for name, content in cifar.items() if name != "test_batch.bin"}))
    with pytest.raises(UsageError, match=r"cifar-10-binary\.tar\.gz has no test_batch\.bin in it"):
        load("cifar10", tmp_path)
    write_and_pin(tar_of({**cifar, "test_batch.bin": bytes(4 * 3073)}))
    with pytest.raises(UsageError, match=r"test_batch\.bin in data file .*tar\.gz is corrupt: its sha256 is"):
        load("cifar10", tmp_path)
    home = tmp_path / "cifar-10-batches-bin"
    assert list(home.iterdir()) == [], "nothing half-unpacked is left"


def test_cifar_without_any_file_names_the_archive_too(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"needs data_batch_1\.bin, .*, test_batch\.bin, .*cifar-10-binary\.tar\.gz in"
    ):
        load("cifar10", tmp_path)


def test_records_must_be_whole(tmp_path: Path, cifar, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    odd = cifar["test_batch.bin"] + b"x"
    files = {**PUBLISHED["cifar10"].files, "test_batch.bin": {"test_batch.bin": sha256(odd)}}
    monkeypatch.setitem(PUBLISHED, "cifar10", dataclasses.replace(CIFAR10, files=files))
    write_plain(tmp_path, {**cifar, "test_batch.bin": odd})
    with pytest.raises(UsageError, match=r"test_batch\.bin is not a whole number of 3073-byte records"):
        load("cifar10", tmp_path)


def test_labels_must_be_classes(tmp_path: Path, cifar, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    odd = b"\x0a" + cifar["test_batch.bin"][1:]
    files = {**PUBLISHED["cifar10"].files, "test_batch.bin": {"test_batch.bin": sha256(odd)}}
    monkeypatch.setitem(PUBLISHED, "cifar10", dataclasses.replace(CIFAR10, files=files))
    write_plain(tmp_path, {**cifar, "test_batch.bin": odd})
    with pytest.raises(UsageError, match="have the label 10, but there are 10 classes; download them again"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("published", [MNIST, CIFAR10])
def test_the_pins_are_whole(published: PublishedDataset) -> None:
    pins = [pin for forms in (*published.files.values(), published.archive) for pin in forms.values()]
    for pin in pins:
        algorithm, _, digest = pin.digest.partition(":")
        assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]
        assert int(digest, 16)
        assert pin.size_bytes > 0
    assert len({pin.digest for pin in pins}) == len(pins)
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in published.mirrors)
