"""The interface of codecs.

A codec receives the strategy's sum function and the comm, because not every encoding can be summed while encoded.
"""

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

Key = int | str  # identifies a strategy's tensor, the same in every step and on every worker


@dataclass(frozen=True)
class TensorSpec:
    """Size of a tensor, for predicting traffic."""

    numel: int
    itemsize: int
    shape: tuple[int, ...] = ()  # empty: a vector

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @staticmethod
    def of(tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.numel(), tensor.element_size(), tuple(tensor.shape))


@dataclass(kw_only=True)
class Codec(ABC):
    """Base class of encodings. A lossless codec keeps a strategy's guarantee; a lossy one states its error bound.

    Dataclass fields are its options. Each worker has its own codec object, which may keep errors from step to step.
    """

    name: ClassVar[str] = ""
    relative_error: ClassVar[float] = 0.0  # of one element, relative to the largest that shares its scale; 0: lossless
    cast: ClassVar[torch.dtype | None] = None  # the data type, if the encoding is a cast

    @abstractmethod
    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm, key: Key = 0) -> None:
        """Sum a contiguous tensor over workers in place, encoded on the wire."""

    def sum_together(
        self, tensors: Sequence[Tensor], sum_over_workers: Callable[[Tensor], None], comm: Comm, keys: Sequence[Key]
    ) -> None:
        """Sum several tensors. The bytes are those of separate sums; a codec may send fewer messages."""
        for tensor, key in zip(tensors, keys, strict=True):
            self.sum(tensor, sum_over_workers, comm, key)

    @abstractmethod
    def traffic(
        self, spec: TensorSpec, sum_traffic: Callable[[TensorSpec], list[Operation]], world_size: int
    ) -> list[Operation]:
        """Predict the operations of `sum` on one worker."""

    def error_bound(self, world_size: int) -> float:  # noqa: ARG002
        """Return the largest error of one sum when no error of earlier steps is kept.

        It is the norm of the error divided by the sum of the norms of the workers' tensors, without the rounding of
        the tensor's own data type.
        """
        return self.relative_error

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a resumed worker needs."""
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
