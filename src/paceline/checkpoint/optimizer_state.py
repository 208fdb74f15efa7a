"""The state of a torch optimiser, by number of the parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.checkpoint.state_tree import Tree


def optimizer_state(optimizer: Optimizer) -> Tree:
    """Return an optimiser's state by number of the parameter. Learning rates are not part of it."""
    parameters = _parameters(optimizer)
    return {index: dict(optimizer.state[p]) for index, p in enumerate(parameters) if p in optimizer.state}


def load_optimizer_state(optimizer: Optimizer, state: Tree) -> None:
    """Restore a result of `optimizer_state`."""
    parameters = _parameters(optimizer)
    optimizer.state.clear()
    for index, values in state.items():
        parameter = parameters[int(index)]
        optimizer.state[parameter] = {name: _placed(value, name, parameter) for name, value in values.items()}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _placed(value: Any, name: str, parameter: Tensor) -> Any:
    """Return a copy of a value of an optimiser's state, on the device of its parameter. Steps stay on the CPU."""
    if not isinstance(value, Tensor):
        return value
    device = torch.device("cpu") if name == "step" else parameter.device
    return value.to(device, copy=True)
