"""Align workers' clocks, broadcast text, and copy files to rank 0, before or after the training loop."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Protocol

import msgspec
import torch
from torch import Tensor

from paceline.errors import RunError
from paceline.worker_files import open_in_run

CLOCK_TAG, FILE_TAG = 0x7C02, 0x7C03
CLOCK_ROUNDS = 16  # round trips per measurement; the fastest has the smallest error
PIECE_BYTES = 1 << 20
MOST_LISTING_BYTES = 1 << 22  # of the names of a worker's files
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class ExchangeComm(Protocol):
    """The methods of a comm (the object through which workers communicate) that this module calls."""

    rank: int
    world_size: int

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def broadcast(self, tensor: Tensor, root: int = 0) -> None: ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]: ...

    def uncounted(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Offset:
    """One measurement of the offset between this worker's `perf_counter` and rank 0's."""

    seconds: float = 0.0  # to add to times of this worker, to get times of rank 0
    error_s: float = 0.0  # largest possible error of `seconds`
    at: float = 0.0  # time of the measurement on this worker's clock


@dataclass(frozen=True)
class Clock:
    """Converts this worker's `perf_counter` to seconds since the run's start on rank 0's clock."""

    origin: float  # the run's start, on rank 0's clock
    first: Offset = Offset()
    last: Offset | None = None  # second measurement at the run's end, because clocks of two hosts drift

    def run_time(self, moment: float) -> float:
        return moment + self.offset_at(moment) - self.origin

    def offset_at(self, moment: float) -> float:
        first, last = self.first, self.last
        if last is None or last.at <= first.at or abs(last.seconds - first.seconds) <= first.error_s + last.error_s:
            return first.seconds  # the drift is within the error
        share = min(max((moment - first.at) / (last.at - first.at), 0.0), 1.0)
        return first.seconds + share * (last.seconds - first.seconds)


def synchronise_clocks(comm: ExchangeComm, *, run_s: float = 0.0) -> Clock:
    """Measure the offset of this worker's clock to rank 0's, and return this worker's `Clock`.

    All workers must call this together. Each worker's `Clock` counts from the run's start on rank 0's clock. It shows
    `run_s` now, which is the duration of a run before it was resumed.
    """
    with comm.uncounted():
        offset = _measure_offset(comm)
        origin = torch.tensor([perf_counter() - run_s], dtype=torch.float64)
        comm.broadcast(origin, 0)
    return Clock(float(origin), offset)


def measure_drift(clock: Clock, comm: ExchangeComm) -> Clock:
    """Measure the offset to rank 0's clock again, and return a `Clock` that also corrects the drift of the clocks.

    All workers must call this together.
    """
    with comm.uncounted():
        return Clock(clock.origin, clock.first, _measure_offset(comm))


def _measure_offset(comm: ExchangeComm) -> Offset:
    """Return the offset between this worker's and rank 0's clock, from the fastest round trip.

    CLOCK_ROUNDS round trips are measured. The calculation assumes that rank 0 reads its clock halfway through the round
    trip. Rank 0 itself answers all other workers, and returns an offset of 0.
    """
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            _answer_peer(comm, peer)
        return Offset(at=perf_counter())
    best = Offset(error_s=float("inf"))
    question, answer = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for _ in range(CLOCK_ROUNDS):
        sent_at = perf_counter()
        comm.send(question, 0, CLOCK_TAG)
        comm.recv(answer, 0, CLOCK_TAG)
        received_at = perf_counter()
        error_s = (received_at - sent_at) / 2
        if error_s < best.error_s:
            best = Offset(float(answer) - (sent_at + received_at) / 2, error_s, received_at)
    # An offset within the error means that both processes run on the same host and share its clock. Clocks of two
    # hosts would differ by the time between the boots of the hosts.
    return Offset(0.0, best.error_s, best.at) if abs(best.seconds) <= best.error_s else best


def _answer_peer(comm: ExchangeComm, peer: int) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(CLOCK_ROUNDS):
        comm.recv(question, peer, CLOCK_TAG)
        comm.send(torch.tensor([perf_counter()], dtype=torch.float64), peer, CLOCK_TAG)


def broadcast_text(comm: ExchangeComm, text: str) -> str:
    """Broadcast rank 0's text, and return it on every worker."""
    data = text.encode()
    with comm.uncounted():
        length = torch.tensor([len(data)])
        comm.broadcast(length, 0)
        if not int(length):
            return ""
        letters = _tensor(data) if comm.rank == 0 else torch.zeros(int(length), dtype=torch.uint8)
        comm.broadcast(letters, 0)
    return bytes(letters.tolist()).decode()


def send_files_to_root(comm: ExchangeComm, folder: Path, local: Path | None) -> None:
    """Copy all files of this worker's `local` folder to `folder` on rank 0.

    All workers must call this together. `local` is None on a worker that has no files to copy, because it writes to
    rank 0's disk directly.
    """
    paths = sorted(local.rglob("*")) if local else []
    files = [(path.relative_to(local).as_posix(), path.stat().st_size) for path in paths if local and path.is_file()]
    listing = json.dumps(files).encode()
    with comm.uncounted():
        lengths = [int(length) for length in comm.all_gather(torch.tensor([len(listing) if files else 0]))]
        if comm.rank == 0:
            for rank, length in enumerate(lengths):
                if length:
                    _receive_files(comm, rank, length, folder)
        elif local and files:
            comm.send(_tensor(listing), 0, FILE_TAG)
            for name, size in files:
                _send_file(comm, local / name, size)


def _send_file(comm: ExchangeComm, path: Path, size: int) -> None:
    with path.open("rb") as source:
        for begin in range(0, size, PIECE_BYTES):
            comm.send(_tensor(source.read(min(PIECE_BYTES, size - begin))), 0, FILE_TAG)


def _receive_files(comm: ExchangeComm, rank: int, length: int, folder: Path) -> None:
    if not 0 < length <= MOST_LISTING_BYTES:
        raise RunError(
            f"worker {rank} sent a list of files of {length} bytes; at most {MOST_LISTING_BYTES} are expected"
        )
    data = torch.zeros(length, dtype=torch.uint8)
    comm.recv(data, rank, FILE_TAG)
    try:
        listing = msgspec.json.decode(bytes(data.tolist()), type=list[tuple[str, _Size]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"worker {rank} sent a malformed list of files: {error}") from None
    for name, size in listing:
        with open_in_run(folder, name, rank=rank) as file:
            for begin in range(0, size, PIECE_BYTES):
                piece = torch.zeros(min(PIECE_BYTES, size - begin), dtype=torch.uint8)
                comm.recv(piece, rank, FILE_TAG)
                file.write(piece.numpy().tobytes())


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
