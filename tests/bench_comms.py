"""Comms for the bench: two that lend memory, one that sums wrongly, one that cannot be used."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from paceline.comm import Comm, Reduction, Work
from paceline.comm.torch import TorchComm


class Lent(Reduction):
    """Sums appear beside what was added."""

    def __init__(self, comm: Comm, own: Tensor) -> None:
        super().__init__(comm, own)
        self.result = torch.zeros_like(own)

    def start(self, begin: int, end: int) -> Work:
        self.result[begin:end] = self.own[begin:end]
        return self.comm.iall_reduce(self.result[begin:end])


class Lending(TorchComm):
    """Lends memory with a result of its own, if the result may be shared."""

    name: ClassVar[str] = "lending"

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        own = torch.zeros(numel, dtype=dtype, device=device)
        return Lent(self, own) if shared else Reduction(self, own)


class LendingInPlace(TorchComm):
    """Lends memory in which the result takes the place of what was added, shared or not."""

    name: ClassVar[str] = "lending-in-place"

    def reduction(self, numel: int, dtype: torch.dtype, device: torch.device, *, shared: bool = False) -> Reduction:
        return super().reduction(numel, dtype, device, shared=shared)


class WrongSums(TorchComm):
    """One worker's last number is off by one."""

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
