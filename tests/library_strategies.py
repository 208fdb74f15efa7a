"""User-defined strategies, one for each hook that the library calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline import Guarantee, Operation, Servers, Strategy, TensorSpec, Worker
from paceline.comm import Work
from paceline.errors import UsageError
from paceline.strategies.base import USER_LOOP, average_parameters, gradient_of


@dataclass(kw_only=True)
class Early(Strategy):
    """Sum every gradient tensor as soon as it is complete, from the last parameter to the first."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACT

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        assert worker.gradient_policy == USER_LOOP
        self._complete: set[nn.Parameter] = set()
        self._under_way: list[tuple[Work, Tensor, nn.Parameter]] = []

    def on_gradient(self, parameter: nn.Parameter) -> None:
        self._complete.add(parameter)
        # Backward runs from the last parameter to the first, so sums start in the reverse order of the parameters.
        waiting = self.worker.parameters[::-1][len(self._under_way) :]
        while waiting and waiting[0] in self._complete:
            self._start(waiting.pop(0))

    def after_backward(self) -> None:
        for parameter in self.worker.parameters[::-1][len(self._under_way) :]:
            self._start(parameter)
        for work, total, parameter in self._under_way:
            work.wait()
            gradient_of(parameter).copy_(total)
        self._complete, self._under_way = set(), []

    def _start(self, parameter: nn.Parameter) -> None:
        total = gradient_of(parameter).detach() * self.worker.weight
        self._under_way.append((self.worker.comm.iall_reduce(total), total, parameter))

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        return [Operation("all_reduce", spec.nbytes) for spec in tensors]


@dataclass(kw_only=True)
class OwnStep(Early):
    """Synchronise like Early and implement the optimiser step: plain SGD with each group's learning rate."""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:  # noqa: ARG002
        if optimizer is not torch.optim.SGD:
            raise UsageError(f"strategy OwnStep takes steps of SGD, not of {optimizer.__name__}")

    @torch.no_grad()
    def step(self) -> None:
        for group in self.worker.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])


@dataclass(kw_only=True)
class EveryOther(Strategy):
    """Average the weights of all workers after every second step."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.PERIODIC

    def setup(self, worker: Worker) -> None:
        super().setup(worker)
        self.num_steps = 0

    def after_step(self) -> None:
        self.num_steps += 1
        if self.num_steps % 2 == 0:
            average_parameters(self.worker)

    def finish(self) -> None:
        average_parameters(self.worker)

    def state_dict(self) -> dict[str, Tensor]:
        return {"num_steps": torch.tensor(self.num_steps)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.num_steps = int(state["num_steps"])

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:  # noqa: ARG002
        return [Operation("all_reduce", spec.nbytes) for spec in tensors] if step % 2 else []


@dataclass(kw_only=True)
class Served(EveryOther, Servers):
    """A strategy that needs one server."""

    def num_servers(self, num_workers: int) -> int:  # noqa: ARG002
        return 1

    def serve(self, server: Worker) -> None: ...
