"""Strategy `local-sgd`: workers average their weights every few steps; with an outer optimiser, it is DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paceline.codecs import TensorSpec
from paceline.comm import Operation
from paceline.errors import UsageError
from paceline.strategies.base import Guarantee, Worker, joined_size
from paceline.strategies.capabilities import Periodic, Tunable, TunedValues
from paceline.strategies.weights import WeightAveraging, new_vector, pack, unpack


@dataclass(kw_only=True)
class LocalSgd(WeightAveraging, Periodic, Tunable):
    """Every `sync_every` steps one all-reduce averages all weights; nothing is sent in other steps.

    By default (outer_lr 1, outer_momentum 0) all workers continue from the mean. Otherwise an outer optimiser, SGD with
    Nesterov momentum, updates the weights of the last synchronisation. The outer optimiser's gradient is these weights
    minus the mean. DiLoCo uses outer_lr 0.7 and outer_momentum 0.9.
    """

    name: ClassVar[str] = "local-sgd"
    paper: ClassVar[str] = "Stich 2019, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105"

    tuned_options: ClassVar[Mapping[str, TunedValues]] = {"sync_every": TunedValues.PERIOD_STEPS}

    sync_every: int = 8
    outer_lr: float = 1.0
    outer_momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise UsageError(f"option sync_every of strategy local-sgd must be at least 1, not {self.sync_every}")
        if not 0 < self.outer_lr < float("inf"):
            raise UsageError(f"option outer_lr of strategy local-sgd must be above 0 and finite, not {self.outer_lr:g}")
        if not 0 <= self.outer_momentum < 1:
            raise UsageError(
                f"option outer_momentum of strategy local-sgd must be from 0 to below 1, not {self.outer_momentum:g}"
            )

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PERIODIC

    def is_synchronised(self, step: int) -> bool:
        return (step + 1) % self.sync_every == 0

    @property
    def has_outer(self) -> bool:
        return self.outer_lr != 1.0 or self.outer_momentum != 0.0

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self._vector = new_vector(worker.parameters)
        if self.has_outer:
            self._anchor = new_vector(worker.parameters)  # weights of the last synchronisation
            pack(worker.parameters, self._anchor)
            self._momentum = self._anchor.new_zeros(self._anchor.numel())

    def average(self, step: int) -> None:
        if not self.is_synchronised(step):
            return
        comm, parameters = self.worker.comm, self.worker.parameters
        if comm.world_size == 1 and not self.has_outer:
            return
        pack(parameters, self._vector)
        if comm.world_size > 1:
            self._vector.div_(comm.world_size)
            comm.all_reduce(self._vector)
        if self.has_outer:
            self._outer_step(self._vector)
        unpack(self._vector, parameters)

    def _outer_step(self, mean: Tensor) -> None:
        """Run one step of the outer optimiser. Overwrite `mean`, the average over workers, with the new weights."""
        gradient = self._anchor - mean
        self._momentum.mul_(self.outer_momentum).add_(gradient)
        gradient.add_(self._momentum, alpha=self.outer_momentum)
        self._anchor.sub_(gradient, alpha=self.outer_lr)
        mean.copy_(self._anchor)

    def finish(self) -> None:
        if self.num_steps % self.sync_every:
            super().finish()

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:
        outer = 3 * joined_size(tensors).nbytes if self.has_outer else 0  # anchor, momentum, gradient
        return outer + super().buffer_bytes(tensors, rank, world_size)

    def traffic_period(self, world_size: int) -> int:  # noqa: ARG002
        return self.sync_every

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        if world_size == 1 or not self.is_synchronised(step):
            return []
        return [Operation("all_reduce", joined_size(tensors).nbytes)]

    def state_dict(self) -> dict[str, Tensor]:
        state = super().state_dict()
        return (
            {**state, "anchor": self._anchor.clone(), "momentum": self._momentum.clone()} if self.has_outer else state
        )

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        if self.has_outer:
            self._anchor.copy_(state["anchor"])
            self._momentum.copy_(state["momentum"])
