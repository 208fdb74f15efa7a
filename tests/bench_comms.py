"""Comms for tests of the bench: two that provide reduction buffers, one with wrong sums, one that is unavailable."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from paceline.comm import Comm, Reduction, Work
from paceline.comm.torch import TorchComm


class Lent(Reduction):
    """A reduction whose result is in a buffer separate from its input."""

    def __init__(self, comm: Comm, own: Tensor) -> None:
        super().__init__(comm, own)
        self.result = torch.zeros_like(own)

    def start(self, begin: int, end: int) -> Work:
        self.result[begin:end] = self.own[begin:end]
        return self.comm.iall_reduce(self.result[begin:end])


class Lending(TorchComm):
    """Provides reductions with a separate result buffer if the result may be shared."""

    name: ClassVar[str] = "lending"

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        own = torch.zeros(numel, dtype=dtype, device=device)
        return Lent(self, own) if shared else Reduction(self, own)


class LendingInPlace(TorchComm):
    """Provides reductions in place, whether or not the result may be shared."""

    name: ClassVar[str] = "lending-in-place"

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        return super().reduction(numel, dtype, device, shared=shared)


class WrongSums(TorchComm):
    """Adds one to the last number of an all-reduce on worker 1."""

    name: ClassVar[str] = "wrong-sums"

    def _all_reduce(self, tensor: Tensor) -> None:
        super()._all_reduce(tensor)
        if self.rank == 1:
            tensor[-1] += 1


class Elsewhere(TorchComm):
    name: ClassVar[str] = "elsewhere"

    @classmethod
    def unavailable(cls) -> str:
        return "it needs a machine that is not here"
