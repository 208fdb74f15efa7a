"""Placement of processes, files that a run on another host sends, and versions that must be equal there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import RunError, UsageError
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.file_transfer import PIECE_BYTES, FileReceiver, send_files_after
from paceline.launch.messages import FilePiece
from paceline.launch.process_host import spread
from paceline.launch.remote_worker import difference, own_facts
from paceline.launch.ssh import Ssh, remote_command, ssh_options
from paceline.limits import Limits


@pytest.mark.parametrize(
    ("num_processes", "num_nodes", "expected"),
    [
        (1, 1, [0]),
        (2, 4, [0, 1]),
        (4, 4, [0, 1, 2, 3]),
        (8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        (5, 4, [0, 0, 1, 2, 3]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (3, 1, [0, 0, 0]),
    ],
)
def test_processes_are_spread_in_even_blocks(num_processes: int, num_nodes: int, expected: list[int]) -> None:
    assert spread(num_processes, num_nodes) == expected


def write(folder: str, checkpoint: str = "") -> None:
    inner = Path(folder, "workers")
    inner.mkdir(exist_ok=True)
    (inner / "0.jsonl").write_bytes(b"x" * (PIECE_BYTES + 5))
    (inner / "empty").write_bytes(b"")
    if checkpoint:
        Path(checkpoint).write_text("weights")


def make_task(folder: Path) -> Task:
    checkpoint = str(folder / "checkpoints" / "final.safetensors")
    return Task(write, {"folder": str(folder), "checkpoint": checkpoint, "recipe": "mine"})


def test_an_existing_folder_is_used_as_it_is(tmp_path: Path) -> None:
    task, sent = make_task(tmp_path), []
    with send_files_after(task, sent.append) as placed:
        assert placed is task
    with send_files_after(Task(write), sent.append) as placed:
        assert placed.arguments == {}
    assert sent == []


@pytest.mark.parametrize("fails", [False, True])
def test_files_of_a_folder_on_another_host_are_sent_back(tmp_path: Path, fails: bool) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    sent: list[FilePiece] = []
    own = ""
    try:
        with send_files_after(make_task(away), sent.append) as placed:
            own = placed.arguments["folder"]
            assert placed.arguments["recipe"] == "mine"
            write(own, placed.arguments["checkpoint"])
            if fails:
                raise LookupError
    except LookupError:
        assert fails
    assert not Path(own).exists()
    assert not away.exists()
    receiver = FileReceiver(make_task(home))
    for message in sent:
        receiver.take(message)
    assert (home / "workers" / "0.jsonl").read_bytes() == b"x" * (PIECE_BYTES + 5)
    assert (home / "workers" / "empty").read_bytes() == b""
    assert (home / "checkpoints" / "final.safetensors").read_text() == "weights"


@pytest.mark.parametrize(
    "name", ["../beside", "/absolute", "in/../../out", "recipe.toml", "./summary.json", ".", "a/" * 8 + "b", "a/\0"]
)
def test_nothing_is_written_outside_the_folder(tmp_path: Path, name: str) -> None:
    receiver = FileReceiver(Task(write, {"folder": str(tmp_path)}))
    with pytest.raises(RunError, match="outside the run's folder"):
        receiver.take(FilePiece(name, b"", is_first=True))


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder, beside = tmp_path / "run", tmp_path / "beside"
    (folder / "workers").mkdir(parents=True)
    beside.mkdir()
    (beside / "file").write_text("precious")
    (folder / "checkpoints").symlink_to(beside)
    (folder / "workers" / "0.jsonl").symlink_to(beside / "file")
    receiver = FileReceiver(Task(write, {"folder": str(folder)}))
    for name in ("checkpoints/file", "checkpoints/deeper/file"):
        with pytest.raises(RunError, match="a folder on its path is a link"):
            receiver.take(FilePiece(name, b"overwritten", is_first=True))
    with pytest.raises(RunError, match=r"'workers/0.jsonl' of worker 0 cannot be written to .*: Too many levels"):
        receiver.take(FilePiece("workers/0.jsonl", b"overwritten", is_first=True))
    assert (beside / "file").read_text() == "precious"
    assert [path.name for path in beside.iterdir()] == ["file"]


def test_a_file_without_its_beginning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("x = 1\n")
    receiver = FileReceiver(Task(write, {"folder": str(tmp_path)}))
    with pytest.raises(RunError, match=r"'code/model.py' without its beginning"):
        receiver.take(FilePiece("code/model.py", b"more", is_first=False))
    monkeypatch.setattr("paceline.launch.file_transfer.MOST_FILES", 2)
    for name in ("workers/0", "workers/1"):
        receiver.take(FilePiece(name, b"", is_first=True))
    with pytest.raises(RunError, match="or more than 2 files"):
        receiver.take(FilePiece("workers/2", b"", is_first=True))


def test_versions_that_must_be_equal() -> None:
    facts = own_facts()
    assert difference(facts, dict(facts)) == ""
    assert difference(facts, {**facts, "torch": "1.0"}) == f"it has torch 1.0, this host {facts['torch']}"
    assert difference(facts, {**facts, "source": "other"}).startswith(
        "it has source files of paceline with digest other"
    )
    assert "unknown" in difference(facts, {})
    assert own_facts() == facts


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"hosts": ("",)}, "'' is not the name of a host"),
        ({"hosts": ()}, "--hosts is empty"),
        ({"hosts": ("a", "-oProxyCommand=x")}, "'-oProxyCommand=x' is not the name of a host"),
        ({"hosts": ("a b",)}, "'a b' is not the name of a host"),
        ({"hosts": ("a", "b", "a")}, "--hosts names a twice"),
        ({"hosts": ("a",), "ssh": " "}, "--ssh is empty"),
        ({"hosts": ("a",), "ssh": "ssh 'x"}, "cannot be parsed"),
        ({"hosts": ("a",), "master_port": 70000}, "--master-port must be from 1 to 65535, not 70000"),
    ],
)
def test_invalid_hosts_are_rejected(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Ssh(LaunchRequest(**arguments)).check()


def test_the_command_that_starts_a_worker() -> None:
    request = LaunchRequest(hosts=("a",), ssh="ssh -p 22", remote_python="/opt/my python")
    command = remote_command(request, "user@a", {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/with space"}, Limits())
    assert command == [
        "ssh",
        "-p",
        "22",
        *ssh_options(Limits()),
        "user@a",
        "exec env OMP_NUM_THREADS=1 'PYTHONPATH=/with space' '/opt/my python' -m paceline.launch.remote_worker",
    ]
    assert remote_command(LaunchRequest(hosts=("a",), ssh="agent"), "a", {}, Limits())[:2] == ["agent", "a"]
