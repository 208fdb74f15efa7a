"""Base classes of codecs, which encode the tensors that workers sum, and error feedback for lossy codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.comm import Comm, Operation
from paceline.errors import UsageError
from paceline.plugins import Options

Key = int | str  # identifies a tensor; the same in every step and on every worker
SumFunction = Callable[[Tensor], None]  # sums a tensor over workers in place


@dataclass(frozen=True)
class TensorSpec:
    """Size of a tensor, from which traffic is predicted. `itemsize` is in bytes."""

    numel: int
    itemsize: int
    shape: tuple[int, ...] = ()  # empty: a vector

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @staticmethod
    def of(tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.numel(), tensor.element_size(), tuple(tensor.shape))


SumTraffic = Callable[[TensorSpec], list[Operation]]  # predicts the communication of a SumFunction


@dataclass(kw_only=True)
class Codec(ABC):
    """Base class of encodings of the tensors that workers sum.

    Lossless codecs leave the sum exact; lossy ones state an error bound. The dataclass fields of a codec are its
    options. Each worker has its own codec object, which may store encoding errors from step to step.
    """

    name: ClassVar[str] = ""
    # Largest error of an encoded element, relative to the largest element that shares its scale; 0: lossless.
    relative_error: ClassVar[float] = 0.0
    cast: ClassVar[torch.dtype | None] = None  # the data type, if the encoding is only a cast

    @abstractmethod
    def sum(self, tensor: Tensor, sum_over_workers: SumFunction, comm: Comm, key: Key = 0) -> None:
        """Sum a contiguous tensor over workers in place.

        `sum_over_workers` sums a tensor as the strategy does, for example by a ring all-reduce. A codec whose encoded
        tensors cannot be added communicates through `comm` instead of calling `sum_over_workers`. `key` identifies the
        tensor in all steps.
        """

    def sum_together(
        self, tensors: Sequence[Tensor], sum_over_workers: SumFunction, comm: Comm, keys: Sequence[Key]
    ) -> None:
        """Sum several tensors over workers in place.

        As many bytes are sent as with one call of `sum` per tensor, but possibly in fewer messages.
        """
        for tensor, key in zip(tensors, keys, strict=True):
            self.sum(tensor, sum_over_workers, comm, key)

    @abstractmethod
    def traffic(self, spec: TensorSpec, sum_traffic: SumTraffic, world_size: int) -> list[Operation]:
        """Return the predicted communication of `sum` on one worker.

        `sum_traffic` predicts the communication of one call of `sum_over_workers`, the strategy's way to sum a tensor.
        """

    def error_bound(self, world_size: int) -> float:  # noqa: ARG002
        """Return a bound on the relative error of one sum.

        The relative error is the norm of the error divided by the sum of the norms of the workers' tensors. Errors that
        are stored from earlier steps, and rounding in the tensor's own data type, are not included.
        """
        return self.relative_error

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that is stored in a checkpoint and needed to resume."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by `state_dict`."""
        if state:
            raise UsageError(
                f"codec {self.name} has no state, but the checkpoint contains {', '.join(sorted(state))}; "
                "resume with the codec of the checkpoint"
            )

    @classmethod
    def option_fields(cls) -> dict[str, Field[Any]]:
        """Return the fields of the codec's options by name."""
        return {item.name: item for item in fields(cls)}

    @property
    def options(self) -> Options:
        """Return the values of the codec's options."""
        return {name: getattr(self, name) for name in self.option_fields()}


@dataclass(kw_only=True)
class GatheredCodec(Codec):
    """Base class of codecs whose encoded tensors (messages) must be decoded before they can be added.

    Workers all-gather the messages and decode them; the strategy's sum function is not used. The decoded tensors are
    added in order of rank, so the sum is bit-identical on all workers, on any hardware.
    """

    @abstractmethod
    def encode(self, tensor: Tensor, key: Key) -> Tensor:
        """Return an encoded vector: a uint8 tensor of `message_bytes` elements. The given vector may be changed."""

    @abstractmethod
    def add_decoded(self, total: Tensor, message: Tensor, comm: Comm) -> None:
        """Decode a message and add the result to the vector `total` in place."""

    @abstractmethod
    def message_bytes(self, spec: TensorSpec) -> int:
        """Return the length in bytes of a tensor's encoded message."""

    def sum(self, tensor: Tensor, sum_over_workers: SumFunction, comm: Comm, key: Key = 0) -> None:
        self.sum_together([tensor], sum_over_workers, comm, [key])

    def sum_together(
        self, tensors: Sequence[Tensor], sum_over_workers: SumFunction, comm: Comm, keys: Sequence[Key]
    ) -> None:
        del sum_over_workers
        messages = [self.encode(tensor.view(-1), key) for tensor, key in zip(tensors, keys, strict=True)]
        lengths = [message.numel() for message in messages]
        gathered = comm.all_gather(messages[0] if len(messages) == 1 else torch.cat(messages))
        for tensor in tensors:
            tensor.zero_()
        for worker_messages in gathered:
            for tensor, message in zip(tensors, worker_messages.split(lengths), strict=True):
                # Copy a part of a longer message, because view(dtype) needs aligned memory.
                self.add_decoded(tensor.view(-1), message.clone() if len(lengths) > 1 else message, comm)

    def traffic(self, spec: TensorSpec, sum_traffic: SumTraffic, world_size: int) -> list[Operation]:  # noqa: ARG002
        return [Operation("all_gather", self.message_bytes(spec))]


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Return the bytes of several vectors, concatenated to one uint8 vector."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts])


class ErrorFeedback:
    """Storage for encoding errors: the error of a tensor is added to the same tensor in the next step.

    A worker multiplies its tensors by its share in the average before they are encoded. Stored errors include this
    factor, so they are added without scaling. Over any number of steps, the decoded sums plus the stored errors equal
    the sum of the inputs. A codec can also store other tensors by name, such as PowerSGD's factor Q. Seide et al. 2014;
    Karimireddy et al. 2019.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def add_error(self, tensor: Tensor, key: Key) -> None:
        """Add the stored error, if there is one, to a tensor in place."""
        error = self.get("error", key, tuple(tensor.shape), tensor)
        if error is not None:
            tensor.add_(error)

    def store_error(self, error: Tensor, key: Key) -> None:
        self.store("error", key, error)

    def get(self, name: str, key: Key, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """Return the tensor stored as `name` for `key`, converted to the data type and device of `like`.

        Return None if no tensor is stored, or if its shape is not `shape`.
        """
        stored = self._tensors.get(f"{name}.{key}")
        return stored.to(like) if stored is not None and tuple(stored.shape) == tuple(shape) else None

    def store(self, name: str, key: Key, tensor: Tensor) -> None:
        """Set non-finite elements to 0 in place, so that they do not affect later steps, and store the tensor."""
        self._tensors[f"{name}.{key}"] = tensor.nan_to_num_(0.0, posinf=0.0, neginf=0.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().clone() for name, tensor in state.items()}
