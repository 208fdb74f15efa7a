"""Transfer of a run's files from worker 0 on another host to the host that started the run.

The files travel as messages through the worker's connection to the launching process.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paceline.errors import RunError
from paceline.launch.base import Task
from paceline.launch.messages import PIECE_BYTES, FilePiece
from paceline.worker_files import open_in_run

MOST_FILES = 10_000  # of one run: a few for every worker and every checkpoint


@contextmanager
def send_files_after(task: Task, send: Callable[[FilePiece], None]) -> Iterator[Task]:
    """Yield a task that this process can run, then send the files of its run to the launching process if necessary.

    If the task has no run folder or the folder exists on this host, the task is yielded unchanged and nothing is sent.
    Otherwise the yielded task has a temporary folder. When the `with` block ends, even after an error, all files in
    that folder are sent with `send`.
    """
    folder = task.arguments.get("folder")
    if not folder or Path(folder).is_dir():
        yield task
        return
    own = Path(tempfile.mkdtemp(prefix="paceline-run-"))
    try:
        yield replace(task, arguments={**task.arguments, **_local_paths(task, Path(folder), own)})
        _send_all(own, send)
    except Exception:
        _send_all(own, send)
        raise
    finally:
        shutil.rmtree(own)


def _local_paths(task: Task, folder: Path, own: Path) -> dict[str, str]:
    paths = {"folder": str(own)}
    checkpoint = task.arguments.get("checkpoint")
    if checkpoint:
        inner = own / Path(checkpoint).relative_to(folder)
        inner.parent.mkdir(parents=True, exist_ok=True)
        paths["checkpoint"] = str(inner)
    return paths


def _send_all(folder: Path, send: Callable[[FilePiece], None]) -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        with path.open("rb") as source:
            is_first = True
            while (piece := source.read(PIECE_BYTES)) or is_first:
                send(FilePiece(name, piece, is_first))
                is_first = False


class FileReceiver:
    """Writes received pieces of files into the run folder of a task, on the launching host."""

    def __init__(self, task: Task) -> None:
        self._folder = task.arguments.get("folder")
        self._names: set[str] = set()

    def take(self, piece: FilePiece) -> None:
        if not self._folder:
            raise RunError(f"worker 0 sent the file {piece.name!r}, but this task has no folder")
        if piece.is_first:
            self._names.add(piece.name)
        if piece.name not in self._names or len(self._names) > MOST_FILES:
            raise RunError(
                f"worker 0 sent the file {piece.name!r} without its beginning, or more than {MOST_FILES} files"
            )
        try:
            with open_in_run(Path(self._folder), piece.name, rank=0, appends=not piece.is_first) as file:
                file.write(piece.data)
        except OSError as error:
            raise RunError(
                f"{piece.name!r} of worker 0 cannot be written to {self._folder}: {error.strerror}"
            ) from None
