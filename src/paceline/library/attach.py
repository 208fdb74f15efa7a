"""Hooks that run a strategy on the user's own model and optimiser.

Gradients are synchronised by the time `backward()` returns, because users inspect, clip and unscale them before the
step: a hook passes each complete gradient to the strategy, and the first one queues an autograd callback for the end of
that backward. Weights are averaged by the time `step()` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.comm import Comm
from paceline.errors import RunError, UsageError
from paceline.library.consistency import DataCheck, check_alike
from paceline.library.optimizer import SteppedByStrategy
from paceline.strategies import CarriesReach, Guarantee, Strategy, Worker, WrappedModel
from paceline.strategies.base import USER_LOOP
from paceline.strategies.capabilities import as_asynchronous, micro_batches_of, no_sync_of
from paceline.train.batchnorm import synchronise_statistics
from paceline.train.replicas import make_equal


class _Handle(Protocol):
    def remove(self) -> None: ...


class Attachment:
    """One model and its optimiser under one strategy."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, strategy: Strategy, comm: Comm, *, check_data: bool
    ) -> None:
        check_alike(model, strategy, comm)
        make_equal(model, comm)
        self.strategy, self.comm = strategy, comm
        self.worker = Worker(
            comm=comm,
            codec=strategy.codec,
            model=model,
            optimizer=optimizer,
            weight=1 / comm.world_size,
            gradient_policy=USER_LOOP,
        )
        strategy.setup(self.worker)
        self.optimizer = SteppedByStrategy(optimizer, strategy) if _overrides(strategy, "step") else optimizer
        self.num_steps = 0
        self._num_micro_batches = micro_batches_of(strategy)
        self._uses_gradient_hook = _overrides(strategy, "on_gradient")
        self._averages_gradients = self._uses_gradient_hook or _overrides(strategy, "after_backward")
        self._is_wrapped = isinstance(strategy, WrappedModel)
        self._checks_reach = self._averages_gradients and not isinstance(strategy, CarriesReach)
        self._data = DataCheck(model) if check_data and as_asynchronous(strategy) is None else None
        self._known = set(self.worker.parameters)
        self._queued: set[int] = set()  # running backwards with a queued callback
        self._is_held = False  # inside no_sync
        self._num_synchronised = self._num_held = 0  # backwards since the last step
        self._backward, self._num_backwards = -1, 0  # id of the running backward; backwards since the last step
        self._was_called = False  # forward of the wrapped replica, since the last step
        self._share = 1.0
        self._scaling: list[_Handle] = []
        self._handles: list[_Handle] = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        if self._averages_gradients or self._is_wrapped:
            self._handles += [
                parameter.register_post_accumulate_grad_hook(self._on_gradient) for parameter in self.worker.parameters
            ]
        if self._is_wrapped:
            self._handles.append(self.worker.replica.register_forward_pre_hook(self._on_forward))

    @property
    def may_differ(self) -> bool:
        """Whether replicas may differ before `finish`."""
        return self.strategy.guarantee not in (Guarantee.EXACT, Guarantee.LOSSY)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._is_held = self._is_held, True
        try:
            with no_sync_of(self.strategy):
                yield
        finally:
            self._is_held = before

    def set_share(self, share: float) -> None:
        """Set the factor for the gradients of the next batch: its samples over the workers' mean number of samples.

        The mean over workers then weights each worker by its samples, including gradients accumulated in no_sync().
        """
        if share == self._share or not (self._averages_gradients or self._is_wrapped):
            return
        self._share = share
        for handle in self._scaling:
            handle.remove()
        scale: Callable[[Tensor], Tensor] = partial(torch.mul, other=share)
        self._scaling = [p.register_hook(scale) for p in self.worker.parameters] if share != 1.0 else []

    def finish(self) -> None:
        """Make replicas equal and remove all hooks from the model and the optimiser."""
        self.detach()
        self.strategy.finish()
        synchronise_statistics(self.worker.model, "average", self.comm, 1 / self.comm.world_size)

    def detach(self) -> None:
        for handle in self._handles + self._scaling:
            handle.remove()
        self._handles, self._scaling = [], []
        if self._data is not None:
            self._data.close()

    def _on_forward(self, replica: nn.Module, inputs: Any) -> None:
        del replica, inputs
        self._was_called = True

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        task = torch._C._current_graph_task_id()
        if task != self._backward:
            self._backward, self._num_backwards = task, self._num_backwards + 1
        if self._is_held or self._num_backwards % self._num_micro_batches:
            self._num_held += 1
            return
        if task not in self._queued:
            self._queued.add(task)
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._after_backward, task))
        if self._uses_gradient_hook:
            self.strategy.on_gradient(parameter)

    def _after_backward(self, task: int) -> None:
        self._queued.discard(task)
        self._num_synchronised += 1
        if self._averages_gradients:
            self._synchronise()

    @torch.no_grad()
    def _synchronise(self) -> None:
        reached = [parameter.grad is not None for parameter in self.worker.parameters]
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in self.worker.parameters):
            raise UsageError("sparse gradients cannot be averaged; use layers without sparse=True")
        self.strategy.after_backward()
        if self._checks_reach:
            self._drop_unreached(reached)
        self._check_data()

    def _drop_unreached(self, reached: list[bool]) -> None:
        """Reset gradients of parameters that no worker used, so that decay and momentum do not change them."""
        own = torch.tensor([self.num_steps, self._num_synchronised, *reached], dtype=torch.float64)
        total = own.clone()
        with self.comm.uncounted():
            self.comm.all_reduce(total)
        if not torch.equal(total[:2], own[:2] * self.comm.world_size):
            raise RunError(
                f"workers are out of step: worker {self.comm.rank} is in backward {self._num_synchronised} of step "
                f"{self.num_steps}, but not all of its peers are; every worker must make the same number of steps, "
                "with the same number of backwards outside no_sync(), and each backward must reach a trained parameter"
            )
        for parameter, count in zip(self.worker.parameters, total[2:].tolist(), strict=True):
            if count == 0:
                parameter.grad = None

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if len(args) > 1 or kwargs.get("closure") is not None:
            return  # the closure runs the backward inside the step
        if self._num_synchronised == 0:
            self._catch_up()
        elif self._is_wrapped and not self._was_called:
            raise RunError(
                f"strategy {self.strategy.name} wraps the model, but forward was called on the unwrapped model, so "
                "gradients were not synchronised: call the model that parallel() returned"
            )
        num_unknown = sum(
            parameter.grad is not None and parameter not in self._known
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        if num_unknown:
            raise RunError(
                f"{num_unknown} parameters have a gradient but were frozen or absent when parallel() was called, so "
                "they are not synchronised: unfreeze or add them first, or call finish(), init() and parallel() again"
            )
        self._check_data()

    def _check_data(self) -> None:
        if self._data is not None:
            data, self._data = self._data, None
            data.compare(self.comm)

    def _catch_up(self) -> None:
        """Synchronise now: no backward of this step did, because none reached a parameter or all were in no_sync()."""
        if self._averages_gradients:
            self._num_synchronised += 1
            self._synchronise()
        elif self._is_wrapped and self._num_held:
            raise RunError(
                f"every backward of this step ran inside no_sync(), so strategy {self.strategy.name} has not "
                "synchronised it; run the last one outside"
            )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self.num_steps += 1
        self._num_synchronised = self._num_held = self._num_backwards = 0
        self._queued.clear()
        self._was_called = False
        with torch.no_grad():
            self.strategy.after_step()


def _overrides(strategy: Strategy, method: str) -> bool:
    return getattr(type(strategy), method) is not getattr(Strategy, method)
