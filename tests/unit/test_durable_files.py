"""Durable files: the old content or the new one, whatever happens, and nothing beside them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch

from paceline import durable_files
from paceline.durable_files import durable_file, durable_path, write_durably
from paceline.errors import RunError
from paceline.train.replicas import save_weights


def test_a_file_is_replaced_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    file = tmp_path / "a"
    for content in (b"old", b"new"):
        write_durably(file, content)
        assert file.read_bytes() == content
    assert synced == [False, True] * 2  # the file before it is renamed, then its folder
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_content(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"old")
    for context in (durable_file, durable_path):
        with pytest.raises(type(error)), context(file):
            raise error
    with pytest.raises(TypeError), durable_file(file) as opened:
        opened.write("text")  # type: ignore[arg-type]
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["a"])


def test_a_file_that_is_in_the_way_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files.secrets, "token_hex", lambda _: "0")
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / ".a.0.part").symlink_to("elsewhere")
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "a", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"


def test_a_link_is_replaced_itself(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to("elsewhere")
    write_durably(tmp_path / "a", b"ours")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "elsewhere").read_bytes()) == (b"ours", b"theirs")


def test_weights_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    save_weights({"a": torch.ones(2)}, file, {})
    before = file.read_bytes()
    save_weights({"a": torch.ones(2)}, file, {})
    assert file.read_bytes() == before
    with pytest.raises(RunError, match=r"checkpoint w.safetensors cannot be written"):
        save_weights({"a": torch.ones(2)}, tmp_path / "missing" / "w.safetensors", {})
    assert os.listdir(tmp_path) == ["w.safetensors"]
