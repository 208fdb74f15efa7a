"""Hooks that run a strategy on the user's own model and optimiser. `paceline.parallel` installs them.

Gradients are synchronised by the time `backward()` returns, because users inspect, clip and unscale them before the
optimiser's step. A hook on each parameter passes the parameter's complete gradient to the strategy. The first hook that
runs in a backward pass also queues an autograd callback, which runs at the end of the pass. Strategies that average
weights do so before the optimiser's `step()` returns.
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
from paceline.strategies import DetectsUnreached, Guarantee, Strategy, Worker, WrappedModel
from paceline.strategies.base import USER_LOOP
from paceline.strategies.capabilities import as_asynchronous, micro_batches_of, no_sync_of, optimizer_of
from paceline.train.batchnorm import synchronise_statistics
from paceline.train.replica_check import ReplicaCheck
from paceline.train.replicas import make_equal

State = dict[str, Any]  # a parameter group or the state_dict of a torch optimiser


class _Handle(Protocol):
    def remove(self) -> None: ...


class Attachment:
    """Runs one strategy on one model and its optimiser, by hooks on both."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        strategy: Strategy,
        comm: Comm,
        *,
        check_data: bool,
        check_replicas: int,
    ) -> None:
        replica_check = ReplicaCheck(check_replicas, strategy, comm) if check_replicas else None
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
        self.optimizer = StrategyOptimizer(optimizer, strategy) if _overrides(strategy, "step") else optimizer
        self.num_steps = 0
        self._replica_check = replica_check
        self._num_micro_batches = micro_batches_of(strategy)
        self._uses_gradient_hook = _overrides(strategy, "on_gradient")
        self._averages_gradients = self._uses_gradient_hook or _overrides(strategy, "after_backward")
        self._is_wrapped = isinstance(strategy, WrappedModel)
        self._checks_reach = self._averages_gradients and not isinstance(strategy, DetectsUnreached)
        self._data = DataCheck(model) if check_data and as_asynchronous(strategy) is None else None
        self._known = set(self.worker.parameters)
        self._queued: set[int] = set()  # ids of the running backward passes that have queued a callback
        self._is_in_no_sync = False
        # Since the last step: synchronised backward passes, and gradients that a hook did not synchronise.
        self._num_synchronised = self._num_unsynchronised = 0
        self._backward, self._num_backwards = -1, 0  # id of the running backward pass; passes since the last step
        self._was_called = False  # whether forward of the wrapped replica ran since the last step
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
        before, self._is_in_no_sync = self._is_in_no_sync, True
        try:
            with no_sync_of(self.strategy):
                yield
        finally:
            self._is_in_no_sync = before

    def set_share(self, share: float) -> None:
        """Set the factor by which gradients are multiplied during backward, from the next batch on.

        `share` is this worker's number of samples in the batch, divided by the mean number over all workers. The mean
        of the scaled gradients over workers is then weighted by numbers of samples, even if gradients of several
        batches are accumulated in no_sync().
        """
        if share == self._share or not (self._averages_gradients or self._is_wrapped):
            return
        self._share = share
        for handle in self._scaling:
            handle.remove()
        scale: Callable[[Tensor], Tensor] = partial(torch.mul, other=share)
        self._scaling = [p.register_hook(scale) for p in self.worker.parameters] if share != 1.0 else []

    def finish(self) -> None:
        """Remove all hooks from the model and the optimiser, and make replicas equal."""
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
        if self._is_in_no_sync or self._num_backwards % self._num_micro_batches:
            self._num_unsynchronised += 1
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
            raise UsageError("sparse gradients cannot be averaged; create the layers without sparse=True")
        self.strategy.after_backward()
        if self._checks_reach:
            self._reset_unreached(reached)
        self._check_data()

    def _reset_unreached(self, reached: list[bool]) -> None:
        """If no worker had a gradient for a parameter, replace the zeros in its `grad` by None.

        With zeros, weight decay and momentum would change these parameters. `reached` has one value per parameter:
        whether this worker had a gradient for it before synchronisation. Raises RunError if workers are not in the same
        backward pass of the same step.
        """
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
            return  # the closure runs the backward pass inside the step
        if self._num_synchronised == 0:
            self._synchronise_late()
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

    def _synchronise_late(self) -> None:
        """Synchronise gradients just before the optimiser's step, if no backward pass of this step has done so.

        There are three such cases: no backward pass reached a parameter, all backward passes ran inside no_sync(), or
        their number was less than the option `accumulate`. If the strategy wraps the model (ddp), the last two cases
        raise RunError, since such a strategy can synchronise only during backward.
        """
        if self._averages_gradients:
            self._num_synchronised += 1
            self._synchronise()
        elif self._is_wrapped and self._num_unsynchronised:
            raise RunError(
                f"every backward of this step ran inside no_sync(), so strategy {self.strategy.name} has not "
                "synchronised it; run the last backward of each step outside no_sync()"
            )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        self.num_steps += 1
        self._num_synchronised = self._num_unsynchronised = self._num_backwards = 0
        self._queued.clear()
        self._was_called = False
        with torch.no_grad():
            self.strategy.after_step()
        if self._replica_check is not None:
            self._replica_check.after_step(self.num_steps - 1, self.worker.parameters)


class StrategyOptimizer(Optimizer):
    """Optimiser that replaces the user's one in the training loop. Its `step` calls the strategy's `step`.

    Parameter groups, state, defaults and hooks are those of the user's optimiser. Therefore learning-rate schedulers
    and gradient scalers work with this object as well as with the user's optimiser.
    """

    _step_supports_amp_scaling = False  # makes a GradScaler unscale gradients before the step, not inside it

    def __init__(self, inner: Optimizer, strategy: Strategy) -> None:
        # Do not call Optimizer.__init__, which would create separate groups and state.
        self.inner = inner
        self._strategy = strategy
        self._optimizer_step_pre_hooks = inner._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = inner._optimizer_step_post_hooks
        self._patch_step_function()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._strategy.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def add_param_group(self, param_group: State) -> None:
        self.inner.add_param_group(param_group)

    def state_dict(self) -> State:
        """Return the state_dict of the optimiser that updates this worker's parameters.

        If the strategy shards the optimiser, this is the state of the worker's own shard.
        """
        return optimizer_of(self._strategy).state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        stepping = optimizer_of(self._strategy)
        stepping.load_state_dict(state_dict)
        for group, loaded in zip(self.inner.param_groups, stepping.param_groups, strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})

    def __repr__(self) -> str:
        return f"{self.inner!r} stepped by {self._strategy.name}"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # copy and pickle look attributes up before `inner` is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> State:
        return self.inner.__getstate__()


def _overrides(strategy: Strategy, method: str) -> bool:
    return getattr(type(strategy), method) is not getattr(Strategy, method)
