"""What strategies that average weights share: a replica as one vector, in pieces, sent from copies."""

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

SEND_BUFFERS = 2  # steps whose messages may still be under way while a worker goes on


@dataclass(kw_only=True)
class WeightAveraging(BufferEstimate, Strategy):
    """Weights are averaged after the optimiser's step; a subclass says which, when and with whom.

    Every replica counts alike, whatever its samples were in a step: weights are states, not sums over samples. A
    worker without samples stands still, but for its momentum, and is averaged like the others.
    """

    num_vectors: ClassVar[int] = 1  # of a replica's length that a worker holds to average

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        return self.num_vectors * joined(tensors).nbytes if world_size > 1 else 0

    @abstractmethod
    def average(self, step: int) -> None:
        """Bring parameters nearer to each other after a step, counted from 0."""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        super().check(num_workers, optimizer)
        if self.codec.relative_error:
            raise UsageError(
                f"strategy {self.name} sends weights, and codec {self.codec.name} would round them anew in every step; "
                "leave the codec out, or use a strategy that sends gradients"
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
    """Copies of a replica that messages leave from: the next optimiser step writes over the weights themselves."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._copies: deque[tuple[Tensor, list[Work]]] = deque()

    def copy(self) -> tuple[Tensor, list[Work]]:
        """This replica as a vector, and the list that its sends belong in. Waits only for the oldest copy's sends."""
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
    """Room for all parameters; of several number types, in one that holds them all."""
    dtype = reduce(torch.promote_types, [parameter.dtype for parameter in parameters])
    return parameters[0].new_empty(sum(parameter.numel() for parameter in parameters), dtype=dtype)


def pack(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    for parameter, part in zip(parameters, _parts(parameters, vector), strict=True):
        part.copy_(parameter.detach())


def unpack(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    for parameter, part in zip(parameters, _parts(parameters, vector), strict=True):
        parameter.detach().copy_(part)


def pieces(vector: Tensor) -> list[Tensor]:
    """A vector in even pieces that travel on their own: one is averaged while the next is on its way."""
    count = -(-vector.numel() * vector.element_size() // PIECE_BYTES)
    return list(vector.tensor_split(count)) if count else []


def _parts(parameters: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    split = vector.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(split, parameters, strict=True)]
