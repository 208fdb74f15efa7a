"""File collection: workers that do not share a disk with rank 0 send it their files over the comm."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from paceline.measure.clock import ClockComm
from paceline.worker_files import path_in_run

PIECE_BYTES = 1 << 20
TAG = 0x7C03


def told_by_root(comm: ClockComm, text: str) -> str:
    """Broadcast a text from rank 0; return it on every worker."""
    data = text.encode()
    with comm.uncounted():
        length = torch.tensor([len(data)])
        comm.broadcast(length, 0)
        if not int(length):
            return ""
        letters = _tensor(data) if comm.rank == 0 else torch.zeros(int(length), dtype=torch.uint8)
        comm.broadcast(letters, 0)
    return bytes(letters.tolist()).decode()


def carry_to_root(comm: ClockComm, folder: Path, local: Path | None) -> None:
    """Copy all files of a worker's `local` folder to `folder` on rank 0. Collective: `local` is None on workers that
    write to rank 0's disk themselves."""
    files = sorted(path for path in local.rglob("*") if path.is_file()) if local is not None else []
    names = [(path.relative_to(local).as_posix(), path.stat().st_size) for path in files] if local is not None else []
    listing = json.dumps(names).encode()
    with comm.uncounted():
        lengths = [int(length) for length in comm.all_gather(torch.tensor([len(listing) if names else 0]))]
        if comm.rank == 0:
            for rank, length in enumerate(lengths):
                if length:
                    _receive_all(comm, rank, length, folder)
        elif names:
            comm.send(_tensor(listing), 0, TAG)
            for path, (_, size) in zip(files, names, strict=True):
                _send(comm, path, size)


def _send(comm: ClockComm, path: Path, size: int) -> None:
    with path.open("rb") as source:
        for begin in range(0, size, PIECE_BYTES):
            comm.send(_tensor(source.read(min(PIECE_BYTES, size - begin))), 0, TAG)


def _receive_all(comm: ClockComm, rank: int, length: int, folder: Path) -> None:
    listing = torch.zeros(length, dtype=torch.uint8)
    comm.recv(listing, rank, TAG)
    for name, size in json.loads(bytes(listing.tolist())):
        target = path_in_run(folder, name, rank=rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for begin in range(0, size, PIECE_BYTES):
                piece = torch.zeros(min(PIECE_BYTES, size - begin), dtype=torch.uint8)
                comm.recv(piece, rank, TAG)
                file.write(piece.numpy().tobytes())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
