"""Request of a worker to a server: write or restore the server's part of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.checkpoint.checkpoint_folder import step_folder
from paceline.checkpoint.rank_files import Header, RankState, read_rank


class CheckpointRequest(msgspec.Struct, frozen=True):
    """The folder of all checkpoints of a run, and the header of the checkpoint to write or to restore."""

    checkpoints: str
    header: Header

    @property
    def folder(self) -> Path:
        return step_folder(Path(self.checkpoints), self.header.step)

    def read(self, rank: int) -> RankState:
        """Read one rank's part of the checkpoint. Raises Damaged if that is not possible."""
        return read_rank(self.folder, rank)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decode(data: bytes) -> CheckpointRequest:
        return msgspec.json.decode(data, type=CheckpointRequest)
