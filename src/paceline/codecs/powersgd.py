"""Codec `powersgd`: low-rank factors with error feedback."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import Codec, ErrorFeedback, Key, SumFunction, SumTraffic, TensorSpec
from paceline.comm import Comm, Operation
from paceline.errors import UsageError


@dataclass(kw_only=True)
class PowerSgd(Codec):
    """A matrix is sent as two low-rank factors, each summed by the strategy; the error is added in the next step.

    Vogels et al. 2019, arXiv:1905.13727. M is a worker's matrix plus the stored error; M^T is M transposed. First,
    P = M Q is summed over workers, and the columns of P are orthonormalised. Then Q = M^T P is summed. The result is
    P Q^T: the sum of all M, projected on the columns of P. A worker stores the error M - P (M^T P)^T, as in algorithm 2
    of the paper. (The authors' code and torch's hook store M minus an equal share of P Q^T. The total is the same, but
    each worker then stores its difference from the others forever.) The first Q is random and the same on all workers.
    Every later step begins with the Q of the previous step.

    Each worker orthonormalises and multiplies P itself, as torch's hook does. On equal hardware the results are
    bit-identical. On mixed hardware replicas may differ by rounding; sending P again would not help, because matrix
    products are rounded differently too.
    """

    name: ClassVar[str] = "powersgd"
    relative_error: ClassVar[float] = 1.0  # an element may be lost in the projection

    rank: int = 4  # columns of P and Q: the paper and torch's hook suggest 1 to 4
    min_vector: int = 16384  # shorter vectors (biases, norms) are sent unchanged

    def __post_init__(self) -> None:
        for option in ("rank", "min_vector"):
            if getattr(self, option) < 1:
                raise UsageError(f"option {option} of codec powersgd must be at least 1, not {getattr(self, option)}")
        self._feedback = ErrorFeedback()

    def sum(self, tensor: Tensor, sum_over_workers: SumFunction, comm: Comm, key: Key = 0) -> None:
        self.sum_together([tensor], sum_over_workers, comm, [key])

    def sum_together(
        self, tensors: Sequence[Tensor], sum_over_workers: SumFunction, comm: Comm, keys: Sequence[Key]
    ) -> None:
        del comm
        pairs = list(zip(tensors, keys, strict=True))
        _sum_as_one([t.view(-1) for t in tensors if self._sides(TensorSpec.of(t)) is None], sum_over_workers)
        with torch.no_grad():
            parts = [self._begin(t, key) for t, key in pairs if self._sides(TensorSpec.of(t)) is not None]
            _sum_as_one([part.p for part in parts], sum_over_workers)
            for part in parts:
                part.project()
            _sum_as_one([part.q for part in parts], sum_over_workers)
            for part in parts:
                self._feedback.store_error(part.error(), part.key)
                part.finish()
                self._feedback.store("q", part.key, part.q)

    def traffic(self, spec: TensorSpec, sum_traffic: SumTraffic, world_size: int) -> list[Operation]:  # noqa: ARG002
        sides = self._sides(spec)
        if sides is None:
            return sum_traffic(spec)
        itemsize = max(spec.itemsize, torch.float32.itemsize)
        columns = min(self.rank, *sides)
        return [operation for side in sides for operation in sum_traffic(TensorSpec(side * columns, itemsize))]

    def state_dict(self) -> dict[str, Tensor]:
        return self._feedback.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._feedback.load_state_dict(state)

    def _sides(self, spec: TensorSpec) -> tuple[int, int] | None:
        """Return (rows, columns) of the matrix whose factors are sent for a tensor; None if it is sent unchanged.

        A tensor is sent unchanged if it is a short vector, or if the two factors together have at least half as many
        elements as the tensor.
        """
        if len(spec.shape) > 1:
            rows = spec.shape[0]
            columns = spec.numel // max(rows, 1)
        elif spec.numel < self.min_vector:
            return None
        else:
            rows = math.isqrt(spec.numel - 1) + 1
            columns = -(-spec.numel // rows)
        is_worth_it = 2 * (rows + columns) * min(self.rank, rows, columns) < spec.numel
        return (rows, columns) if is_worth_it else None

    def _begin(self, tensor: Tensor, key: Key) -> _Factors:
        sides = self._sides(TensorSpec.of(tensor))
        assert sides is not None
        own = tensor.reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
        self._feedback.add_error(own, key)
        matrix = pad(own, (0, sides[0] * sides[1] - own.numel())).view(sides)
        shape = (sides[1], min(self.rank, *sides))
        q = self._feedback.get("q", key, shape, matrix)
        if q is None:
            generator = torch.Generator().manual_seed(zlib.crc32(str(key).encode()))
            q = torch.randn(shape, generator=generator, dtype=torch.float64).to(matrix)
        return _Factors(key, tensor, matrix, q)


class _Factors:
    """A tensor and its low-rank factors P and Q during one sum of the tensor over the workers."""

    def __init__(self, key: Key, tensor: Tensor, matrix: Tensor, q: Tensor) -> None:
        self.key, self.tensor, self.matrix = key, tensor, matrix
        self.p, self.q = matrix @ q, q

    def project(self) -> None:
        # QR gives orthonormal columns even if P has zero or dependent ones.
        self.p = torch.linalg.qr(self.p).Q.contiguous()
        self.own_q = self.matrix.T @ self.p
        self.q = self.own_q.clone()

    def error(self) -> Tensor:
        return self._vector(self.matrix - self.p @ self.own_q.T)

    def finish(self) -> None:
        self.tensor.view(-1).copy_(self._vector(self.p @ self.q.T))

    def _vector(self, matrix: Tensor) -> Tensor:
        return matrix.reshape(-1)[: self.tensor.numel()]


def _sum_as_one(tensors: Sequence[Tensor], sum_over_workers: SumFunction) -> None:
    """Sum several tensors over workers in place, concatenated to one vector."""
    if len(tensors) == 1:
        sum_over_workers(tensors[0])
    elif tensors:
        vector = torch.cat([tensor.reshape(-1) for tensor in tensors])
        sum_over_workers(vector)
        for tensor, part in zip(tensors, vector.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))
