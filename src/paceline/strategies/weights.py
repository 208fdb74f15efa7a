"""Base class of strategies that average weights, and functions that pack weights or bound how far replicas drift."""

from __future__ import annotations

import math
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
from paceline.strategies.base import Strategy, Worker, average_parameters, joined_size
from paceline.strategies.capabilities import BufferEstimate, GradientsAtStep, KnownGradients

MAX_SERIES_TERMS = 100_000  # limit in bound_drift; the matrices of all strategies converge long before
NEGLIGIBLE_TERM = 1e-12  # relative to the sum; the series in bound_drift ends here
SEND_BUFFERS = 2  # copies of the replica to send from, each used by the sends of one step


@dataclass(kw_only=True)
class WeightAveraging(KnownGradients, BufferEstimate, Strategy):
    """Base class of strategies that average weights after the optimiser's step; a subclass implements `average`.

    Averages do not depend on the workers' numbers of samples in a step. The replica of a worker without samples is
    averaged like the others, although in that step only momentum and weight decay have changed it.
    """

    num_vectors: ClassVar[int] = 1  # vectors of a replica's length that a worker needs for averaging

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        return self.num_vectors * joined_size(tensors).nbytes if world_size > 1 else 0

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.OWN

    @abstractmethod
    def average(self, step: int) -> None:
        """Average the parameters over all or some workers, or do nothing. Called after each step (`step`, from 0)."""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        super().check(num_workers, optimizer)
        if self.codec.relative_error:
            raise UsageError(
                f"strategy {self.name} sends weights, which codec {self.codec.name} would round in every step; "
                "remove the codec, or use a strategy that sends gradients"
            )

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self.num_steps = 0  # steps of this worker so far

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
    """Copies of a replica for sending, because the optimiser may overwrite weights while sends are in progress."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._copies: deque[tuple[Tensor, list[Work]]] = deque()

    def copy(self) -> tuple[Tensor, list[Work]]:
        """Return a copy of this replica as a vector, and a list to which the caller appends all sends of the copy.

        If all copies are in use, wait for the sends of the oldest.
        """
        if len(self._copies) < SEND_BUFFERS:
            vector = new_vector(self._worker.parameters)
        else:
            vector, sends = self._copies.popleft()
            for send in sends:
                send.wait()
        pack(self._worker.parameters, vector)
        self._copies.append((vector, []))
        return self._copies[-1]

    def drain(self) -> None:
        """Wait until all sends are complete."""
        for _, sends in self._copies:
            for send in sends:
                send.wait()
            sends.clear()


def new_vector(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return an uninitialised vector with room for all parameters, in a data type that can represent them all."""
    dtype = reduce(torch.promote_types, [parameter.dtype for parameter in parameters])
    return parameters[0].new_empty(sum(parameter.numel() for parameter in parameters), dtype=dtype)


def pack(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Copy the parameters into `vector`, one after the other."""
    for parameter, part in zip(parameters, views_in(vector, parameters), strict=True):
        part.copy_(parameter.detach())


def unpack(vector: Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Copy the elements of `vector` into the parameters; the reverse of `pack`."""
    for parameter, part in zip(parameters, views_in(vector, parameters), strict=True):
        parameter.detach().copy_(part)


def views_in(vector: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return a view of `vector` for each parameter, with the parameter's shape."""
    split = vector.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(split, parameters, strict=True)]


def running_means(num_workers: int, start: int = 0) -> Tensor:
    """Return the mixing matrix of one trip round the ring that starts at worker `start`.

    Row i of a mixing matrix holds the factors of all replicas in the average of worker i. Here the worker at position
    k, counted from the start, gets the mean of the workers at positions 0 to k.
    """
    positions = [(rank - start) % num_workers for rank in range(num_workers)]
    rows = [[1 / (mine + 1) if other <= mine else 0.0 for other in positions] for mine in positions]
    return torch.tensor(rows, dtype=torch.float64)


def pairwise_means(num_workers: int, distance: int) -> Tensor:
    """Return the mixing matrix of a step in which worker i averages its replica with that of worker i - `distance`."""
    own = torch.eye(num_workers, dtype=torch.float64)
    return (own + own.roll(-distance, dims=1)) / 2


def rotation(num_workers: int) -> Tensor:
    """Return the permutation matrix that moves position k to k + 1, and the last position to the start."""
    return torch.eye(num_workers, dtype=torch.float64).roll(-1, dims=1)


def bound_drift(period: Sequence[Tensor]) -> float:
    """Return an upper bound on a replica's distance from the mean replica, relative to the largest norm of an update.

    `period` holds the mixing matrices W of successive steps, which repeat in a cycle. The replicas x of p workers are
    x(t+1) = W(t) (x(t) + u(t)), where each row of W adds up to 1 and u are the optimisers' updates. The matrix
    C = I - J / p, where all elements of J are 1, subtracts the mean. Then C x(t+1) is the sum over s of
    C W(t) ... W(t-s) C u(t-s), as C W C = C W. If the norm of each update is at most U, the norm of all updates of a
    step together is at most sqrt(p) U. If p vectors add up to zero, the norm of each is at most sqrt((p-1)/p) times the
    norm of all together. So the distance of a replica is at most sqrt(p-1) U times the sum over s of
    ||C W(t) ... W(t-s)||, for the worst t. The function returns this bound divided by U. The bound holds for any
    optimiser, because nothing is assumed about the updates. If each chunk of the replicas has matrices of its own, the
    bound holds if ||C W(t) ... W(t-s)|| is the same for all chunks, because squared norms add up over chunks.
    """
    num_workers = len(period[0])
    centre = torch.eye(num_workers, dtype=torch.float64) - 1 / num_workers
    worst = 0.0
    for last in range(len(period)):
        product, total = centre, 0.0
        for back in range(MAX_SERIES_TERMS):
            product = product @ period[(last - back) % len(period)]
            term = float(torch.linalg.matrix_norm(product, 2))
            total += term
            if term <= NEGLIGIBLE_TERM * max(total, 1.0):
                break
        worst = max(worst, total)
    return math.sqrt(num_workers - 1) * worst
