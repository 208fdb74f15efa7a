"""Write a worker's or server's part of checkpoints in a background thread, from a private copy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from paceline.checkpoint.checkpoint_folder import prune, step_folder
from paceline.checkpoint.rank_files import Header, write_rank
from paceline.checkpoint.state_tree import Tree, private_copy, split


class CheckpointWriter:
    """Writes one checkpoint at a time. Training waits for the copy only, and for the previous checkpoint if needed.

    A checkpoint that cannot be written does not end the training: `warn` gets a sentence, and the older ones stay.
    """

    def __init__(self, folder: Path, *, keep: int, warn: Callable[[str], None]) -> None:
        self._folder, self._keep, self._warn = folder, keep, warn
        self._thread: threading.Thread | None = None

    def save(self, header: Header, state: Tree) -> None:
        """Copy the state, and start to write it. First wait for the previous checkpoint of this worker."""
        self.wait()
        plain, tensors = split(state)
        copied = private_copy(tensors)
        self._thread = threading.Thread(
            target=self._write, args=(header, plain, copied), daemon=True, name="paceline-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def prune(self) -> None:
        """Delete superseded checkpoints. Only rank 0 does so."""
        try:
            prune(self._folder, self._keep)
        except OSError as error:
            self._warn(f"old checkpoints cannot be deleted: {error.strerror or error}")

    def _write(self, header: Header, plain: Any, tensors: dict[str, Tensor]) -> None:
        try:
            folder = step_folder(self._folder, header.step)
            folder.mkdir(exist_ok=True)
            write_rank(folder, header, plain, tensors)
        except OSError as error:
            self._warn(
                f"the checkpoint of step {header.step} cannot be written: {error.strerror or error}; training continues"
            )
        if header.rank == 0:
            self.prune()
