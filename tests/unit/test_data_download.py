"""Downloads from a local server: verified, atomic, once for all processes; and the error messages of failures."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline.data import load_data
from paceline.data.download import fetch
from paceline.data.published import CIFAR10, MNIST, PUBLISHED, Pin, PublishedDataset
from paceline.errors import UsageError
from paceline.recipe import DataConfig

CONTENT = bytes(range(256)) * 3000


class Server:
    """Serves bytes by path; breaks connections on request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []  # path of each
        self.cut_after: list[int] = []  # for each coming request, the number of bytes after which to hang up
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests.append(handler.path)
        content = self.files.get(handler.path)
        if content is None:
            handler.send_error(404)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[: self.cut_after.pop(0) if self.cut_after else len(content)])

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    server = Server()
    yield server
    server.close()


def pin_of(content: bytes) -> Pin:
    return Pin(len(content), f"md5:{hashlib.md5(content).hexdigest()}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a whole data set -------------------------------------------------------------------------------------------


@pytest.fixture
def files(server: Server, monkeypatch: pytest.MonkeyPatch) -> PublishedDataset:
    """Replace mnist with a data set of two files, which the server has in compressed form."""
    forms = {}
    for name, plain in (("one", b"1" * 1000), ("two", CONTENT)):
        server.files[f"/{name}.gz"] = gzip.compress(plain, mtime=0)
        forms[name] = {name: pin_of(plain), f"{name}.gz": pin_of(server.files[f"/{name}.gz"])}
    published = dataclasses.replace(MNIST, files=forms, mirrors=(server.url,))
    monkeypatch.setitem(PUBLISHED, "mnist", published)
    return published


@pytest.fixture
def archive(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Replace CIFAR-10 with one image per file, which the server has as an archive."""
    contents = {name: bytes([number]) * 3073 for number, name in enumerate(CIFAR10.files)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    name = next(iter(CIFAR10.archive))
    server.files[f"/{name}"] = packed.getvalue()
    published = dataclasses.replace(
        CIFAR10,
        files={name: {name: pin_of(content)} for name, content in contents.items()},
        archive={name: pin_of(packed.getvalue())},
        mirrors=(server.url,),
    )
    monkeypatch.setitem(PUBLISHED, "cifar10", published)
    return contents


def test_fetch_gets_what_is_missing_and_only_that(server: Server, files: PublishedDataset, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1" * 1000)
    calls: list[tuple[int, int | None]] = []
    assert fetch("mnist", tmp_path, lambda done, total: calls.append((done, total))) == tmp_path
    assert server.requests == ["/two.gz"]
    size = files.files["two"]["two.gz"].size_bytes
    assert (calls[0], calls[-1]) == ((0, size), (size, size))
    assert "two.gz" in names(tmp_path / "mnist")
    calls.clear()
    fetch("mnist", str(tmp_path), lambda done, total: calls.append((done, total)))
    assert len(server.requests) == 1
    assert calls == []


def test_progress_counts_all_files_together(server: Server, files: PublishedDataset, tmp_path: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    fetch("mnist", tmp_path / "new" / "folder", lambda done, total: calls.append((done, total)))
    total_bytes = sum(len(content) for content in server.files.values())
    assert {total for _, total in calls} == {total_bytes}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] == total_bytes
    assert len(files.find(tmp_path / "new" / "folder")) == 2


def test_fetch_goes_to_the_default_directory(files: PublishedDataset, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "default"))
    assert fetch("mnist") == tmp_path / "default"
    assert len(files.find(tmp_path / "default")) == 2


@pytest.mark.usefixtures("archive")
def test_loading_downloads_an_archive_and_unpacks_it(server: Server, tmp_path: Path) -> None:
    data = load_data(DataConfig(name="cifar10", dir=str(tmp_path)), seed=0)
    assert (len(data.train), len(data.test)) == (5, 1)
    assert "cifar-10-binary.tar.gz" not in names(tmp_path)
    assert "test_batch.bin" in names(tmp_path / "cifar-10-batches-bin")
    load_data(DataConfig(name="cifar10", dir=str(tmp_path), download=False), seed=0)
    assert len(server.requests) == 1


@pytest.mark.usefixtures("archive")
def test_workers_that_start_together_download_once(server: Server, tmp_path: Path) -> None:
    config = DataConfig(name="cifar10", dir=str(tmp_path))
    with ThreadPoolExecutor(4) as workers:
        loaded = list(workers.map(lambda _: load_data(config, seed=0), range(4)))
    assert [len(data.train) for data in loaded] == [5] * 4
    assert len(server.requests) == 1


@pytest.mark.usefixtures("archive")
def test_no_download_sends_no_request(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not found in .*, and downloading is off \(--no-download\); run `paceline"):
        load_data(DataConfig(name="cifar10", dir=str(tmp_path), download=False), seed=0)
    assert server.requests == []
    assert names(tmp_path) == []


def test_a_failed_download_says_what_where_why_and_how(server: Server, files: PublishedDataset, tmp_path: Path) -> None:
    del server.files["/two.gz"]
    with pytest.raises(UsageError) as raised:
        load_data(DataConfig(name="mnist", dir=str(tmp_path)), seed=0)
    message = str(raised.value)
    assert message.startswith(f"data 'mnist' needs two.gz, not found in {tmp_path / 'mnist'} or {tmp_path} or ")
    assert f"downloading failed ({server.url}two.gz: HTTP 404 Not Found)" in message
    assert "run `paceline data fetch mnist`" in message
    assert list(files.find(tmp_path)) == ["one"], "what did arrive stays"


def without_two(files: PublishedDataset, tmp_path: Path) -> str:
    """Fetch while /two.gz cannot be downloaded; check that no part of it is left, and return the message."""
    with pytest.raises(UsageError) as raised:
        fetch("mnist", tmp_path)
    assert list(files.find(tmp_path)) == ["one"]
    assert names(tmp_path / "mnist") == ["one.gz"]
    return str(raised.value)


def test_an_interrupted_download_is_tried_again(server: Server, files: PublishedDataset, tmp_path: Path) -> None:
    size = len(server.files["/two.gz"])
    server.cut_after = [10_000, 100, 50]
    fetch("mnist", tmp_path)
    assert server.requests == ["/one.gz", "/two.gz", "/two.gz", "/two.gz"]
    assert (tmp_path / "mnist" / "two.gz").stat().st_size == size
    assert len(files.find(tmp_path)) == 2


def test_a_download_that_always_breaks_leaves_nothing(server: Server, files: PublishedDataset, tmp_path: Path) -> None:
    server.cut_after = [10_000, 100, 100, 100]
    assert f"({server.url}two.gz: interrupted (" in without_two(files, tmp_path)
    assert server.requests.count("/two.gz") == 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content[:-1] + b"?", "the received file is corrupt: its md5 is"),
        (lambda content: content + b"more", "the received file has more than the expected"),
        (lambda content: content[:-9], "the received file has"),
    ],
)
def test_another_file_than_expected_leaves_nothing(  # type: ignore[no-untyped-def]
    server: Server, files: PublishedDataset, tmp_path: Path, change, problem: str
) -> None:
    server.files["/two.gz"] = change(server.files["/two.gz"])
    assert f"({server.url}two.gz: {problem}" in without_two(files, tmp_path)
    assert server.requests.count("/two.gz") == 1


def test_mirrors_are_tried_in_order(server: Server, files: PublishedDataset, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    mirrors = tuple(f"{server.url}{folder}" for folder in ("absent/", "wrong/", "", "unused/"))
    monkeypatch.setitem(PUBLISHED, "mnist", dataclasses.replace(files, mirrors=mirrors))
    (tmp_path / "one").write_bytes(b"1" * 1000)
    server.files["/wrong/two.gz"] = b"x" * len(server.files["/two.gz"])
    fetch("mnist", tmp_path)
    assert server.requests == ["/absent/two.gz", "/wrong/two.gz", "/two.gz"]


def test_the_failure_names_every_mirror(server: Server, files: PublishedDataset, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    closed = Server()
    closed.close()
    monkeypatch.setitem(PUBLISHED, "mnist", dataclasses.replace(files, mirrors=(server.url, closed.url)))
    del server.files["/two.gz"]
    message = without_two(files, tmp_path)
    assert f"({server.url}two.gz: HTTP 404 Not Found; {closed.url}two.gz: no connection (" in message


def test_downloads_are_as_readable_as_their_folder(files: PublishedDataset, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir(mode=0o755)
    fetch("mnist", tmp_path)
    assert {path.stat().st_mode & 0o777 for path in files.find(tmp_path).values()} == {0o644}


def test_a_download_prints_nothing(files: PublishedDataset, tmp_path: Path, capfd) -> None:  # type: ignore[no-untyped-def]
    fetch("mnist", tmp_path)
    assert len(files.find(tmp_path)) == 2
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("files")
def test_an_unwritable_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"data 'mnist' cannot be written to .*file \(.*\); name a folder that can"):
        fetch("mnist", tmp_path / "file")


def test_only_published_data_can_be_fetched() -> None:
    with pytest.raises(UsageError, match=r"unknown data to fetch 'mnist-mini'; did you mean 'mnist'\?"):
        fetch("mnist-mini")
    with pytest.raises(UsageError, match="unknown data to fetch 'zzz'; known: cifar10, mnist"):
        fetch("zzz")
