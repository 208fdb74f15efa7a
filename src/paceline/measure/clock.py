"""Clock synchronisation: the offset of each worker's clock from the clock of rank 0."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

ROUNDS = 16  # the fastest round trip has the smallest error
TAG = 0x7C02


class ClockComm(Protocol):
    """The methods of a comm that clock synchronisation and file collection use."""

    rank: int
    world_size: int

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def broadcast(self, tensor: Tensor, root: int = 0) -> None: ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]: ...

    def uncounted(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Offset:
    """Seconds to add to this worker's clock to get rank 0's, the largest error, and the time of the measurement."""

    seconds: float = 0.0
    error_s: float = 0.0
    at: float = 0.0


@dataclass(frozen=True)
class Clock:
    """This worker's `perf_counter` as seconds since the run's start, on rank 0's clock."""

    origin: float  # the run's start, on rank 0's clock
    first: Offset = Offset()
    last: Offset | None = None  # measured again at the end, since clocks of two hosts drift

    def run_time(self, moment: float) -> float:
        return moment + self.offset_at(moment) - self.origin

    def offset_at(self, moment: float) -> float:
        first, last = self.first, self.last
        if last is None or last.at <= first.at or abs(last.seconds - first.seconds) <= first.error_s + last.error_s:
            return first.seconds  # the drift is within the error
        share = min(max((moment - first.at) / (last.at - first.at), 0.0), 1.0)
        return first.seconds + share * (last.seconds - first.seconds)


def agree_on_start(comm: ClockComm) -> Clock:
    """Return this worker's clock, with a common start of the run. Collective."""
    with comm.uncounted():
        offset = _measure(comm)
        origin = torch.tensor([perf_counter()], dtype=torch.float64)
        comm.broadcast(origin, 0)
    return Clock(float(origin), offset)


def measured_again(clock: Clock, comm: ClockComm) -> Clock:
    """Return the clock with its drift since the start. Collective."""
    with comm.uncounted():
        return Clock(clock.origin, clock.first, _measure(comm))


def _measure(comm: ClockComm) -> Offset:
    """Measure the offset from rank 0, which reads its clock about halfway through a round trip."""
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            _answer(comm, peer)
        return Offset(at=perf_counter())
    best = Offset(error_s=float("inf"))
    question, answer = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        sent_at = perf_counter()
        comm.send(question, 0, TAG)
        comm.recv(answer, 0, TAG)
        received_at = perf_counter()
        error_s = (received_at - sent_at) / 2
        if error_s < best.error_s:
            best = Offset(float(answer) - (sent_at + received_at) / 2, error_s, received_at)
    # An offset within the error means the same host, whose processes share a clock; clocks of two hosts differ by
    # their boot times.
    return Offset(0.0, best.error_s, best.at) if abs(best.seconds) <= best.error_s else best


def _answer(comm: ClockComm, peer: int) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        comm.recv(question, peer, TAG)
        comm.send(torch.tensor([perf_counter()], dtype=torch.float64), peer, TAG)
