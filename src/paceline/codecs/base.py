"""What a tensor looks like on the wire.

A codec gets the strategy's own way to sum, and the comm, because not every encoding can be summed while encoded.
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

Key = int | str  # which of a strategy's tensors this is, the same in every step and on every worker


@dataclass(frozen=True)
class TensorSpec:
    """Size of a tensor, for predicting traffic without having it."""

    numel: int
    itemsize: int
    shape: tuple[int, ...] = ()  # where it matters to a codec; left out, a vector

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize

    @staticmethod
    def of(tensor: Tensor) -> TensorSpec:
        return TensorSpec(tensor.numel(), tensor.element_size(), tuple(tensor.shape))


@dataclass(kw_only=True)
class Codec(ABC):
    """One encoding. Lossless ones keep a strategy's guarantee; others say how large their error may be.

    Dataclass fields are its options. A codec belongs to one worker, because it may remember what it could not send.
    """

    name: ClassVar[str] = ""
    relative_error: ClassVar[float] = 0.0  # of one encoded number, relative to the largest near it; 0 is lossless
    cast: ClassVar[torch.dtype | None] = None  # for encodings that are only another number type: that type

    @abstractmethod
    def sum(self, tensor: Tensor, sum_over_workers: Callable[[Tensor], None], comm: Comm, key: Key = 0) -> None:
        """Sum a contiguous tensor over workers in place, encoded on the way."""

    def sum_together(
        self, tensors: Sequence[Tensor], sum_over_workers: Callable[[Tensor], None], comm: Comm, keys: Sequence[Key]
    ) -> None:
        """As `sum` for each, in as many bytes; a codec may put them in fewer messages."""
        for tensor, key in zip(tensors, keys, strict=True):
            self.sum(tensor, sum_over_workers, comm, key)

    @abstractmethod
    def traffic(
        self, spec: TensorSpec, sum_traffic: Callable[[TensorSpec], list[Operation]], world_size: int
    ) -> list[Operation]:
        """The operations that `sum` causes on one worker."""

    def error_bound(self, world_size: int) -> float:  # noqa: ARG002
        """The largest error of one sum while nothing is left over from earlier ones.

        As a length, relative to the sum of the lengths of what the workers put in. Rounding of the tensor's own
        number type is not counted.
        """
        return self.relative_error

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a restart of this worker."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        if state:
            raise UsageError(
                f"codec {self.name} keeps nothing from step to step, but was given {', '.join(sorted(state))}; "
                "continue with the codec that it was saved with"
            )

    @classmethod
    def option_fields(cls) -> dict[str, Field[Any]]:
        """The codec's options by name."""
        return {item.name: item for item in fields(cls)}

    @property
    def options(self) -> Options:
        """The values of the codec's options."""
        return {name: getattr(self, name) for name in self.option_fields()}
