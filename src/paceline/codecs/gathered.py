"""Base class of codecs whose encodings cannot be added: workers gather all messages, decode and add them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.codecs.base import Codec, Key, TensorSpec
from paceline.comm import Comm, Operation


@dataclass(kw_only=True)
class Gathered(Codec):
    """Encode a tensor as one message of bytes and all-gather it, whatever sum function the strategy passes.

    Messages are added in order of rank, so the sum is bit-identical on all workers, on any hardware.
    """

    @abstractmethod
    def encode(self, tensor: Tensor, key: Key) -> Tensor:
        """Return a vector encoded as a message of `message_bytes`."""

    @abstractmethod
    def add_decoded(self, total: Tensor, message: Tensor, comm: Comm) -> None:
        """Decode a message and add it to a vector."""

    @abstractmethod
    def message_bytes(self, spec: TensorSpec) -> int:
        """Return the length of a tensor's message."""

    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm, key: Key = 0) -> None:
        self.sum_together([tensor], sum_over_workers, comm, [key])

    def sum_together(
        self,
        tensors: Sequence[Tensor],
        sum_over_workers: Callable[[Tensor], None],  # noqa: ARG002
        comm: Comm,
        keys: Sequence[Key],
    ) -> None:
        messages = [self.encode(tensor.view(-1), key) for tensor, key in zip(tensors, keys, strict=True)]
        lengths = [message.numel() for message in messages]
        gathered = comm.all_gather(messages[0] if len(messages) == 1 else torch.cat(messages))
        for tensor in tensors:
            tensor.zero_()
        for together in gathered:
            for tensor, message in zip(tensors, together.split(lengths), strict=True):
                # A copy, because view(dtype) needs aligned memory.
                self.add_decoded(tensor.view(-1), message.clone() if len(lengths) > 1 else message, comm)

    def traffic(
        self,
        spec: TensorSpec,
        sum_traffic: Callable[[TensorSpec], list[Operation]],  # noqa: ARG002
        world_size: int,  # noqa: ARG002
    ) -> list[Operation]:
        return [Operation("all_gather", self.message_bytes(spec))]


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Return the bytes of several vectors, concatenated."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])
