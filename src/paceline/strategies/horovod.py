"""Strategy `horovod`: gradients are summed by the library Horovod."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.codecs import TensorSpec
from paceline.comm import Comm, Operation
from paceline.errors import RunError, UsageError
from paceline.strategies.base import Guarantee, Strategy, Worker, gradient_of
from paceline.strategies.capabilities import Accumulating, BufferEstimate, GradientsAtStep, KnownGradients

HOW_TO_START = "start workers with `horovodrun -np N`, or set HOROVOD_RANK, HOROVOD_SIZE and HOROVOD_GLOO_* for each"


@dataclass(kw_only=True)
class Horovod(Accumulating, KnownGradients, BufferEstimate, Strategy):
    """All gradients are summed by one grouped all-reduce of Horovod, over its own connections."""

    name: ClassVar[str] = "horovod"
    paper: ClassVar[str] = "Sergeev and Del Balso 2018, arXiv:1802.05799"

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.AVERAGED

    @classmethod
    def unavailable(cls) -> str:
        try:
            importlib.import_module("horovod.torch")
        except Exception as error:  # a build for another torch may raise anything
            return f"the package horovod cannot be imported ({error}); install a build for the torch in use"
        return ""

    @classmethod
    def unsupported(cls, comm: type[Comm]) -> str:
        if not comm.between_processes:
            return f"it connects processes, but workers on comm {comm.name!r} are threads"
        return ""

    def check(self, num_workers: int, optimizer: type[Any]) -> None:
        super().check(num_workers, optimizer)
        if self.codec.relative_error:
            raise UsageError(f"strategy horovod cannot use codec {self.codec.name}; remove the codec")

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._library: Any = None
        comm = worker.comm
        if comm.world_size == 1:
            return
        library = importlib.import_module("horovod.torch")
        library.init()
        theirs, ours = (library.rank(), library.size()), (comm.rank, comm.world_size)
        if theirs != ours:
            raise RunError(
                f"Horovod reports worker {theirs[0]} of {theirs[1]}, but this is worker {ours[0]} of {ours[1]}; "
                f"{HOW_TO_START}"
            )
        self._library = library

    def after_backward(self) -> None:
        if self._library is None:
            return
        worker = self.worker
        gradients = [gradient_of(parameter) for parameter in worker.parameters]
        for gradient in gradients:
            gradient.mul_(worker.weight)
        self._library.grouped_allreduce_(gradients, op=self._library.Sum, name="paceline")
        # Horovod does not send through the comm, so its bytes are counted here.
        for operation in self.traffic(worker.specs, worker.comm.rank, worker.comm.world_size, 0):
            worker.comm.counter.add(operation)

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        return sum(tensor.nbytes for tensor in tensors) if world_size > 1 else 0

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1:
            return []
        return [Operation("all_reduce", sum(tensor.nbytes for tensor in tensors))]
