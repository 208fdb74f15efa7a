"""Strategy `none`: no synchronisation. Its time is the baseline for the cost of synchronisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.strategies.base import Guarantee, Strategy
from paceline.strategies.capabilities import GradientsAtStep, KnownGradients


@dataclass(kw_only=True)
class NoSynchronisation(KnownGradients, Strategy):
    """Nothing is sent: every worker trains on its own shard. No strategy can be faster."""

    name: ClassVar[str] = "none"

    meet: bool = False  # true: a barrier in every step, the lower bound of the cost of synchronous training

    def after_step(self) -> None:
        if self.meet:
            self.worker.comm.barrier()

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    @property
    def gradients_at_step(self) -> GradientsAtStep:
        return GradientsAtStep.OWN

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        return []
