"""Files of a run whose folder worker 0 cannot see, because it is on another host: sent to the launcher by its pipe."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from paceline.errors import RunError
from paceline.launch.base import Task
from paceline.launch.messages import FilePiece

PIECE_BYTES = 1 << 20


@contextmanager
def delivered(task: Task, send: Callable[[FilePiece], None]) -> Iterator[Task]:
    """The task with a folder that this process can write to; its files are sent at the end, after a failure too."""
    folder = task.arguments.get("folder")
    if not folder or Path(folder).is_dir():
        yield task
        return
    own = Path(tempfile.mkdtemp(prefix="paceline-run-"))
    try:
        yield replace(task, arguments={**task.arguments, **_moved(task, Path(folder), own)})
        _send_all(own, send)
    except Exception:
        _send_all(own, send)
        raise
    finally:
        shutil.rmtree(own)


def _moved(task: Task, folder: Path, own: Path) -> dict[str, str]:
    moved = {"folder": str(own)}
    checkpoint = task.arguments.get("checkpoint")
    if checkpoint:
        inner = own / Path(checkpoint).relative_to(folder)
        inner.parent.mkdir(parents=True, exist_ok=True)
        moved["checkpoint"] = str(inner)
    return moved


def _send_all(folder: Path, send: Callable[[FilePiece], None]) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        with path.open("rb") as source:
            is_first = True
            while (piece := source.read(PIECE_BYTES)) or is_first:
                send(FilePiece(name, piece, is_first))
                is_first = False


class Receiver:
    """Writes files into the folder of a task's run as their pieces arrive."""

    def __init__(self, task: Task) -> None:
        self._folder = task.arguments.get("folder")

    def take(self, piece: FilePiece) -> None:
        inner = PurePosixPath(piece.name)
        if not self._folder or inner.is_absolute() or ".." in inner.parts:
            raise RunError(f"worker 0 wants to write outside the run's folder: {piece.name!r}")
        target = Path(self._folder) / inner
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb" if piece.is_first else "ab") as file:
                file.write(piece.data)
        except OSError as error:
            raise RunError(
                f"{piece.name!r} of worker 0 cannot be written to {self._folder}: {error.strerror}"
            ) from None
