"""Codec `int8`: one byte per element and a scale per chunk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.codecs.base import GatheredCodec, Key, TensorSpec, pack
from paceline.codecs.rounding import LARGEST, as_int8, symmetric_scale, to_numbers
from paceline.comm import Comm
from paceline.errors import UsageError

SCALE_TYPE = torch.float32


@dataclass(kw_only=True)
class Int8(GatheredCodec):
    """One byte per element and a float32 scale per chunk; workers gather all messages and add them.

    The element of largest magnitude in a chunk becomes 127 or -127. A chunk that contains an infinity or NaN is decoded
    as NaN, so that overflow checks on the sum detect it on every worker.
    """

    name: ClassVar[str] = "int8"
    relative_error: ClassVar[float] = 1 / (2 * LARGEST)  # relative to the largest element of the chunk

    chunk: int = 1024  # elements that share a scale

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"option chunk of codec int8 must be at least 1, not {self.chunk}")

    def encode(self, tensor: Tensor, key: Key) -> Tensor:  # noqa: ARG002
        chunks = self._chunks(tensor.to(_float_type(tensor.dtype)))
        # A non-finite element makes the scale of its chunk non-finite.
        scales = symmetric_scale(chunks.abs().amax(1, keepdim=True)).to(SCALE_TYPE)
        integers = as_int8(chunks, scales)
        return pack([scales.view(-1), integers.view(-1)[: tensor.numel()]])

    def add_decoded(self, total: Tensor, message: Tensor, comm: Comm) -> None:
        scale_bytes = message.numel() - total.numel()
        scales = message[:scale_bytes].view(SCALE_TYPE)
        integers = message[scale_bytes:].view(torch.int8)
        decoded = to_numbers(self._chunks(integers.to(_float_type(total.dtype))), scales.view(-1, 1))
        comm.add(total, decoded.view(-1)[: total.numel()])

    def message_bytes(self, spec: TensorSpec) -> int:
        return -(-spec.numel // self.chunk) * SCALE_TYPE.itemsize + spec.numel

    def error_bound(self, world_size: int) -> float:  # noqa: ARG002
        # Rounding changes an element by half a scale at most, and the norm of a chunk is at least its largest element.
        # Rounding also never changes an element by more than its magnitude, so the bound is at most 1.
        return min(1.0, math.sqrt(self.chunk) * self.relative_error)

    def _chunks(self, vector: Tensor) -> Tensor:
        return pad(vector, (0, -vector.numel() % self.chunk)).view(-1, self.chunk)


def _float_type(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
