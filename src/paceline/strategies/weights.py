"""Base class and helpers of strategies that average weights: replicas as one vector, sent from copies in pieces."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import TensorSpec
from paceline.comm import Work
from paceline.errors import UsageError
from paceline.strategies.base import Strategy, Worker, average_parameters, joined
from paceline.strategies.capabilities import BufferEstimate
from paceline.strategies.ring import PIECE_BYTES

SEND_BUFFERS = 2  # steps whose sends may be in progress while the worker continues


@dataclass(kw_only=True)
class WeightAveraging(BufferEstimate, Strategy):
    """Average weights after the optimiser's step; a subclass implements `average`.

    Replicas are weighted equally, whatever their number of samples in a step. A worker without samples moves only by
    its momentum and is averaged like the others.
    """

    num_vectors: ClassVar[int] = 1  # vectors of a replica's length that a worker needs for averaging

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        return self.num_vectors * joined(tensors).nbytes if world_size > 1 else 0

    @abstractmethod
    def average(self, step: int) -> None:
        """Average the parameters after a step (counted from 0), fully or partially."""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        super().check(num_workers, optimizer)
        if self.codec.relative_error:
            raise UsageError(
                f"strategy {self.name} sends weights, which codec {self.codec.name} would round in every step; "
                "remove the codec, or use a strategy that sends gradients"
            )

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self.num_steps = 0  # of this worker so far

    def after_step(self) -> None:
        step, self.num_steps = self.num_steps, self.num_steps + 1
        with torch.no_grad():
            self.average(step)

    def finish(self) -> None:
        average_parameters(self.worker)

    def state_dict(self) -> dict[str, Tensor]:
        return {"num_steps": torch.tensor(self.num_steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.num_steps = int(state["num_steps"])


class Outbox:
    """Copies of a replica to send from: the next optimiser step overwrites the weights themselves."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._copies: deque[tuple[Tensor, list[Work]]] = deque()

    def copy(self) -> tuple[Tensor, list[Work]]:
        """Return this replica as a vector, and a list for its sends. Waits for the sends of the oldest copy only."""
        if len(self._copies) < SEND_BUFFERS:
            vector = new_vector(self._worker.parameters)
        else:
            vector, sends = self._copies.popleft()
            for send in sends:
                send.wait()
        under_way: list[Work] = []
        self._copies.append((vector, under_way))
        pack(self._worker.parameters, vector)
        return vector, under_way

    def drain(self) -> None:
        for _, sends in self._copies:
            for send in sends:
                send.wait()
            sends.clear()


def new_vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return an empty vector for all parameters, in a data type that holds all of theirs."""
    dtype = reduce(torch.promote_types, [parameter.dtype for parameter in parameters])
    return parameters[0].new_empty(sum(parameter.numel() for parameter in parameters), dtype=dtype)


def pack(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    for parameter, part in zip(parameters, _parts(parameters, vector), strict=True):
        part.copy_(parameter.detach())


def unpack(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for parameter, part in zip(parameters, _parts(parameters, vector), strict=True):
        parameter.detach().copy_(part)


def pieces(vector: Tensor) -> list[Tensor]:
    """Split a vector into equal pieces that are sent separately: one is averaged while the next arrives."""
    count = -(-vector.numel() * vector.element_size() // PIECE_BYTES)
    return list(vector.tensor_split(count)) if count else []


def _parts(parameters: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    split = vector.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(split, parameters, strict=True)]
