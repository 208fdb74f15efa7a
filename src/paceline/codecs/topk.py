"""Codec `topk`: the largest elements only, with error feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paceline.codecs.base import ErrorFeedback, GatheredCodec, Key, TensorSpec, pack
from paceline.comm import Comm
from paceline.errors import UsageError


@dataclass(kw_only=True)
class TopK(GatheredCodec):
    """Only the largest elements of a tensor and their indices are sent; the rest is added to the next step's tensor.

    The largest elements are those of largest magnitude. Workers gather and decode all messages, and add the results.
    Infinities and NaN count as largest, so they are sent. Stich et al. 2018, arXiv:1809.07599.
    """

    name: ClassVar[str] = "topk"
    relative_error: ClassVar[float] = 1.0  # an element may not be sent at all

    ratio: float = 0.01  # fraction of a tensor's elements that is sent, but at least one element

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise UsageError(f"option ratio of codec topk must be above 0 and at most 1, not {self.ratio:g}")
        self._feedback = ErrorFeedback()

    def encode(self, tensor: Tensor, key: Key) -> Tensor:
        self._feedback.add_error(tensor, key)
        # Between equal elements, workers may choose differently: this is harmless, because indices are sent.
        indices = tensor.abs().topk(self._count(tensor.numel()), sorted=False).indices
        message = pack([tensor[indices], indices.to(_index_type(tensor.numel()))])
        self._feedback.store_error(tensor.index_fill(0, indices, 0.0), key)
        return message

    def add_decoded(self, total: Tensor, message: Tensor, comm: Comm) -> None:
        value_bytes = self._count(total.numel()) * total.element_size()
        values = message[:value_bytes].view(total.dtype)
        index_bytes = message[value_bytes:]
        indices = index_bytes.clone().view(_index_type(total.numel())).long()
        chosen = total[indices]
        comm.add(chosen, values)
        total.index_copy_(0, indices, chosen)

    def message_bytes(self, spec: TensorSpec) -> int:
        return self._count(spec.numel) * (spec.itemsize + _index_type(spec.numel).itemsize)

    def error_bound(self, world_size: int) -> float:  # noqa: ARG002
        # The sent elements have at least the fraction `ratio` of the squared norm.
        return math.sqrt(1 - self.ratio)

    def state_dict(self) -> dict[str, Tensor]:
        return self._feedback.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._feedback.load_state_dict(state)

    def _count(self, numel: int) -> int:
        # The factor cancels rounding, so that 0.07 of 100 is 7.
        return min(numel, max(1, math.ceil(numel * self.ratio * (1 - 1e-12))))


def _index_type(numel: int) -> torch.dtype:
    return torch.int32 if numel <= torch.iinfo(torch.int32).max else torch.int64
