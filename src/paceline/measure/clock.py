"""Clocks of several workers brought together: what a worker's clock must be changed by to show rank 0's time."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

ROUNDS = 16  # the quickest of them counts: whatever made the others slower made them uncertain
TAG = 0x7C02


class ClockComm(Protocol):
    """What is needed of a comm."""

    rank: int
    world_size: int

    def send(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def recv(self, tensor: Tensor, peer: int, tag: int = 0) -> None: ...

    def broadcast(self, tensor: Tensor, root: int = 0) -> None: ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]: ...

    def uncounted(self) -> AbstractContextManager[Any]: ...


@dataclass(frozen=True)
class Offset:
    """What is added to this worker's clock to get rank 0's, how far off that can be, and when it was found."""

    seconds: float = 0.0
    error_s: float = 0.0
    at: float = 0.0


@dataclass(frozen=True)
class Clock:
    """This worker's `perf_counter` as seconds since the run's start, on rank 0's clock."""

    origin: float  # the run's start, on rank 0's clock
    first: Offset = Offset()
    last: Offset | None = None  # found again at the end: clocks of two hosts drift apart

    def run_time(self, moment: float) -> float:
        return moment + self.offset_at(moment) - self.origin

    def offset_at(self, moment: float) -> float:
        first, last = self.first, self.last
        if last is None or last.at <= first.at or abs(last.seconds - first.seconds) <= first.error_s + last.error_s:
            return first.seconds  # no drift that could be told from the error
        share = min(max((moment - first.at) / (last.at - first.at), 0.0), 1.0)
        return first.seconds + share * (last.seconds - first.seconds)


def agree_on_start(comm: ClockComm) -> Clock:
    """Every worker's clock, and one start for all of them; all workers call it."""
    with comm.uncounted():
        offset = _measure(comm)
        origin = torch.tensor([perf_counter()], dtype=torch.float64)
        comm.broadcast(origin, 0)
    return Clock(float(origin), offset)


def measured_again(clock: Clock, comm: ClockComm) -> Clock:
    """The same clock with its drift since the start; all workers call it."""
    with comm.uncounted():
        return Clock(clock.origin, clock.first, _measure(comm))


def _measure(comm: ClockComm) -> Offset:
    """Ask rank 0 for the time, over and over: its answer was given about halfway between question and receipt."""
    if comm.rank == 0:
        for peer in range(1, comm.world_size):
            _answer(comm, peer)
        return Offset(at=perf_counter())
    best = Offset(error_s=float("inf"))
    question, answer = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        asked = perf_counter()
        comm.send(question, 0, TAG)
        comm.recv(answer, 0, TAG)
        told = perf_counter()
        error_s = (told - asked) / 2
        if error_s < best.error_s:
            best = Offset(float(answer) - (asked + told) / 2, error_s, told)
    return _settled(best)


def _settled(found: Offset) -> Offset:
    """Clocks that cannot be told apart are one clock, their host's: those of two hosts differ by when they booted."""
    return Offset(0.0, found.error_s, found.at) if abs(found.seconds) <= found.error_s else found


def _answer(comm: ClockComm, peer: int) -> None:
    question = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        comm.recv(question, peer, TAG)
        comm.send(torch.tensor([perf_counter()], dtype=torch.float64), peer, TAG)
