"""An optimiser whose step is executed by the strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.strategies import Strategy
from paceline.strategies.capabilities import optimizer_of

State = dict[str, Any]  # torch's own: a parameter group, or the state of an optimiser


class SteppedByStrategy(Optimizer):
    """The user's optimiser with its step replaced by the strategy's.

    Groups, state, defaults and hooks are the user's own objects, so schedulers and scalers work with either.
    """

    _step_supports_amp_scaling = False  # a GradScaler must unscale gradients itself instead of passing its scale

    def __init__(self, inner: Optimizer, strategy: Strategy) -> None:
        # No Optimizer.__init__: it would create separate groups and state.
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
        """Return the state of this worker's steps: that of its slices if the strategy shards the optimiser."""
        return optimizer_of(self._strategy).state_dict()

    def load_state_dict(self, state_dict: State) -> None:
        stepping = optimizer_of(self._strategy)
        stepping.load_state_dict(state_dict)
        for group, loaded in zip(self.inner.param_groups, stepping.param_groups, strict=True):
            group.update({key: value for key, value in loaded.items() if key != "params"})

    def __repr__(self) -> str:
        return f"{self.inner!r} stepped by {self._strategy.name}"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # looked up by copy and pickle before it is set
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> State:
        return self.inner.__getstate__()
