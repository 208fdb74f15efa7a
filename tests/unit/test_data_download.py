"""Downloading: resumed, checked, atomic, once for all; and what is said when it fails. A local server serves."""

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
from paceline.data.published import CIFAR10, MNIST, PUBLISHED, PublishedDataset
from paceline.data.transfer import TransferFailed, transfer
from paceline.data.verify import Pin
from paceline.errors import UsageError
from paceline.recipe import DataConfig

CONTENT = bytes(range(256)) * 3000


class Server:
    """Serves bytes by path, and misbehaves as told."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None]] = []  # path and Range of each
        self.cut_after: list[int] = []  # for each request to come, after how many bytes to hang up
        self.ignores_range = False
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
        wanted = handler.headers["Range"]
        self.requests.append((handler.path, wanted))
        content = self.files.get(handler.path)
        if content is None:
            handler.send_error(404)
            return
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and not self.ignores_range else 0
        if first >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if first else 200)
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - first))
        handler.end_headers()
        stop = first + self.cut_after.pop(0) if self.cut_after else len(content)
        handler.wfile.write(content[first:stop])

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


def ignore(done_bytes: int, total_bytes: int | None) -> None:
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- one file ---------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_with_its_progress(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = CONTENT
    calls: list[tuple[int, int | None]] = []
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), lambda done, total: calls.append((done, total)))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert names(tmp_path) == ["a"]
    assert calls[0] == (0, len(CONTENT))
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len(calls) > 3


def test_an_interrupted_transfer_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = CONTENT
    server.cut_after = [1000, 500]
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.requests] == [None, "bytes=1000-", "bytes=1500-"]


def test_a_transfer_given_up_is_resumed_by_the_next_call(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = CONTENT
    server.cut_after = [1000, 500, 0]
    with pytest.raises(TransferFailed, match=rf"{server.url}a: interrupted after 1500 of {len(CONTENT)} bytes"):
        transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert names(tmp_path) == ["a.part"]
    server.requests.clear()
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert server.requests == [("/a", "bytes=1500-")]
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert names(tmp_path) == ["a"]


def test_a_server_that_cannot_resume_starts_over(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = CONTENT
    server.ignores_range = True
    (tmp_path / "a.part").write_bytes(CONTENT[:1000])
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert server.requests == [("/a", "bytes=1000-")]
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize("left_over", [b"other bytes", b"x" * (len(CONTENT) + 7), b"x" * len(CONTENT)])
def test_wrong_bytes_left_over_from_another_time_are_replaced(server: Server, tmp_path: Path, left_over: bytes) -> None:
    server.files["/a"] = CONTENT
    (tmp_path / "a.part").write_bytes(left_over)
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert names(tmp_path) == ["a"]


def test_a_complete_part_needs_no_request(server: Server, tmp_path: Path) -> None:
    (tmp_path / "a.part").write_bytes(CONTENT)
    transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert server.requests == []
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("sent", "problem"),
    [(CONTENT[:-1] + b"?", "is corrupt: its md5 is"), (CONTENT + b"more" * 100, "not the expected 768000")],
)
def test_another_file_than_expected_leaves_nothing(server: Server, tmp_path: Path, sent: bytes, problem: str) -> None:
    server.files["/a"] = sent
    with pytest.raises(TransferFailed, match=rf"{server.url}a: what it sent .*{problem}"):
        transfer([server.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert names(tmp_path) == []
    assert len(server.requests) == 1


def test_a_shorter_file_than_expected_is_no_hindrance_to_the_next_mirror(server: Server, tmp_path: Path) -> None:
    server.files["/short"], server.files["/good"] = b"please log in first", CONTENT
    with pytest.raises(TransferFailed, match=rf"{server.url}short: its file ends before byte 19"):
        transfer([server.url + "short"], tmp_path / "a", pin_of(CONTENT), ignore)
    transfer([server.url + "short", server.url + "good"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    server.files["/bad"], server.files["/good"] = b"x" * len(CONTENT), CONTENT
    urls = [server.url + name for name in ("missing", "bad", "good", "never")]
    transfer(urls, tmp_path / "a", pin_of(CONTENT), ignore)
    assert [path for path, _ in server.requests] == ["/missing", "/bad", "/good"]
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_every_mirror_s_reason_is_given(server: Server, tmp_path: Path) -> None:
    closed = Server()
    closed.close()
    with pytest.raises(TransferFailed) as raised:
        transfer([server.url + "a", closed.url + "a"], tmp_path / "a", pin_of(CONTENT), ignore)
    assert str(raised.value).startswith(f"{server.url}a: HTTP 404 Not Found; {closed.url}a: no connection (")


# --- a whole data set -------------------------------------------------------------------------------------------


@pytest.fixture
def files(server: Server, monkeypatch: pytest.MonkeyPatch) -> PublishedDataset:
    """A data set named mnist of two files, of which the server has the compressed forms."""
    forms = {}
    for name, plain in (("one", b"1" * 1000), ("two", CONTENT)):
        server.files[f"/{name}.gz"] = gzip.compress(plain, mtime=0)
        forms[name] = {name: pin_of(plain), f"{name}.gz": pin_of(server.files[f"/{name}.gz"])}
    published = dataclasses.replace(MNIST, files=forms, mirrors=(server.url,))
    monkeypatch.setitem(PUBLISHED, "mnist", published)
    return published


@pytest.fixture
def archive(server: Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """CIFAR-10 of one image per file, which the server has as an archive."""
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
    assert [path for path, _ in server.requests] == ["/two.gz"]
    size = files.files["two"]["two.gz"].size_bytes
    assert calls[-1] == (size, size)
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
def test_no_download_asks_nobody(server: Server, tmp_path: Path) -> None:
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


@pytest.mark.usefixtures("files")
def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"data 'mnist' cannot be written to .*file \(.*\); name a folder that can"):
        fetch("mnist", tmp_path / "file")


def test_only_published_data_can_be_fetched() -> None:
    with pytest.raises(UsageError, match=r"unknown data to fetch 'mnist-mini'; did you mean 'mnist'\?"):
        fetch("mnist-mini")
    with pytest.raises(UsageError, match="unknown data to fetch 'zzz'; known: cifar10, mnist"):
        fetch("zzz")
