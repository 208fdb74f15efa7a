"""Output files: written atomically; links, pipes, devices and folders."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from command import run_command
from paceline.cli.output import check_different, check_target
from paceline.errors import UsageError
from paceline.output_files import atomic_file, is_stream

CONV = ("dataflow", "conv", "--input", "1 2; 3 4", "--kernel", "1", "--cycles", "0")


def test_a_file_is_complete_or_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_file(file) as target:
        target.writelines(["half", "\ud800"])
    assert file.read_text() == "old"
    with atomic_file(file) as target:
        target.write("new")
        target.flush()
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_keeps_pointing_where_it_does(tmp_path: Path) -> None:
    file, link = tmp_path / "real.txt", tmp_path / "link.txt"
    link.symlink_to("real.txt")
    for text in ("made", "replaced"):
        with atomic_file(link) as target:
            target.write(text)
        assert file.read_text() == text
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, file]


@pytest.mark.parametrize("option", ["--json", "--trace", "--chart", "--animate"])
def test_a_pipe_is_written_to(tmp_path: Path, option: str) -> None:
    """A pipe is not replaced by a file."""
    pipe = tmp_path / ("pipe.csv" if option == "--trace" else "pipe.html")
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    said = run_command(*CONV, option, str(pipe))
    reader.join()
    assert said.code == 0, said.err
    assert len(read[0]) > 50
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_devices_are_streams(tmp_path: Path) -> None:
    assert is_stream("/dev/null")
    assert is_stream("/dev/fd/1")
    assert not is_stream(tmp_path / "none.txt")
    said = run_command(*CONV, "--json", "/dev/null")
    assert (said.code, said.err) == (0, "")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="a system without /proc")
@pytest.mark.parametrize("option", ["--json", "--trace"])
def test_a_folder_that_takes_no_files_is_said_first(option: str) -> None:
    """A folder is refused whatever its permissions are."""
    said = run_command(*CONV, option, "/proc/result.json", width=200)
    assert (said.code, said.out) == (2, "")
    assert "the folder cannot be written" in said.err


def test_two_options_with_one_file(tmp_path: Path) -> None:
    same = tmp_path / "same.json"
    said = run_command(*CONV, "--json", str(same), "--trace", str(tmp_path / "." / "same.json"), width=300)
    assert (said.code, said.out, same.exists()) == (2, "", False)
    assert "--trace and --json are the same file" in said.err
    check_different({"--json": "-", "--trace": "-", "--chart": "", "--animate": "", "--plot": "/dev/null"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("in.csv", "1,2\n3,4\n", ("conv", "--input", "in.csv", "--kernel", "1", "--trace")),
        ("k.json", "[[1]]", ("conv", "--input", "1 2; 3 4", "--kernel", "./k.json", "--json")),
        ("my.py", "def model(): pass\n", ("network", "my.py:model", "--input-shape", "1x8x8", "--json")),
        ("mine.toml", "rows = 1\n", ("network", "alexnet", "--chip", "mine.toml", "--json")),
    ],
)
def test_what_is_read_is_not_written_over(
    name: str, text: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    said = run_command("dataflow", *words, name, width=200)
    assert said.code == 2
    assert f"the input and {words[-1]} are the same file, {name!r}" in said.err
    assert Path(name).read_text() == text


def test_links_that_lead_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop.json").symlink_to("loop.json")
    with pytest.raises(UsageError, match="is a link that leads back to itself"):
        check_target("--json", "loop.json")
    Path("far.json").symlink_to("nowhere/far.json")
    with pytest.raises(UsageError, match=r"the folder '.*/nowhere' does not exist"):
        check_target("--json", "far.json")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        check_target("--trace", str(tmp_path))
