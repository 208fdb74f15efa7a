"""Names, sizes, digests and download addresses of the files of published data sets (MNIST, CIFAR-10)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.errors import UsageError


@dataclass(frozen=True)
class Pin:
    """Expected size and digest of a published file."""

    size_bytes: int
    digest: str  # "md5:..." or "sha256:..." of the whole file

    def mismatch(self, path: Path) -> str:
        """Return how a file differs from the published file, or why it cannot be read; empty if both are equal."""
        algorithm, _, expected = self.digest.partition(":")
        try:
            size_bytes = path.stat().st_size
            if size_bytes != self.size_bytes:
                return f"has {size_bytes} bytes, not the expected {self.size_bytes}"
            with path.open("rb") as stream:
                # Some publishers state md5 alone; usedforsecurity=False allows it on FIPS systems.
                digest = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return "" if digest == expected else f"is corrupt: its {algorithm} is {digest}, not the expected {expected}"


@dataclass(frozen=True)
class PublishedDataset:
    """A data set as a list of files, each of which exists in one or more forms (plain, compressed)."""

    name: str
    files: Mapping[str, Mapping[str, Pin]]  # by needed file: its possible names, preferred first, and their pins
    folders: tuple[str, ...]  # searched below the data directory; downloads go to the first
    mirrors: tuple[str, ...]  # URL prefixes of the file names, tried in order
    archive: Mapping[str, Pin] = field(default_factory=dict)  # the archive with all files, if there is one

    def find(self, directory: Path) -> dict[str, Path]:
        """Return the path of each existing file, by key in `files`. Plain files are preferred to compressed ones."""
        paths = {}
        for file, forms in self.files.items():
            for path in (directory / folder / form for form in forms for folder in self.folders):
                if os.path.isfile(path):  # unlike Path.is_file, False where a folder may not be read
                    paths[file] = path
                    break
        return paths

    def missing_error(self, directory: Path, why: str) -> UsageError:
        """Return an error that names the missing files, the searched folders, and how to get the files."""
        paths = self.find(directory)
        files = ", ".join(list(forms)[-1] for file, forms in self.files.items() if file not in paths)
        places = " or ".join(str(directory / folder) for folder in self.folders)
        archive = f" (or {next(iter(self.archive))} in {directory})" if self.archive else ""
        return UsageError(
            f"data {self.name!r} needs {files}, not found in {places}{archive}, and {why}; "
            f"run `paceline data fetch {self.name}` where there is a network, "
            f"or get them from {self.mirrors[0]}{''.join(self.archive)} and name their folder with --data-dir"
        )


def data_directory(directory: str | os.PathLike[str] = "") -> Path:
    """Return the folder of data files: `directory`, else $PACELINE_DATA, else a cache folder in the user's home."""
    text = os.fspath(directory) or os.environ.get("PACELINE_DATA", "") or "~/.cache/paceline/data"
    return Path(text).expanduser()


def _idx(stem: str, plain: tuple[int, str], compressed: tuple[int, str]) -> tuple[str, dict[str, Pin]]:
    return stem, {stem: Pin(plain[0], f"sha256:{plain[1]}"), f"{stem}.gz": Pin(compressed[0], f"md5:{compressed[1]}")}


MNIST = PublishedDataset(
    name="mnist",
    files=dict(
        [
            _idx(
                "train-images-idx3-ubyte",
                (47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
                (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            ),
            _idx(
                "train-labels-idx1-ubyte",
                (60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
                (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            ),
            _idx(
                "t10k-images-idx3-ubyte",
                (7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"),
                (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            ),
            _idx(
                "t10k-labels-idx1-ubyte",
                (10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
                (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
            ),
        ]
    ),
    folders=("mnist", "", "MNIST/raw"),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/",),
)


def _batches(digests: Iterable[tuple[str, str]]) -> dict[str, dict[str, Pin]]:
    return {name: {name: Pin(30_730_000, f"sha256:{digest}")} for name, digest in digests}


CIFAR10 = PublishedDataset(
    name="cifar10",
    files=_batches(
        [
            ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ]
    ),
    folders=("cifar-10-batches-bin", ""),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    archive={"cifar-10-binary.tar.gz": Pin(170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530")},
)

PUBLISHED = {data.name: data for data in (MNIST, CIFAR10)}
