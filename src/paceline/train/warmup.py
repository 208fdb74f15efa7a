"""What a process pays once, paid before anything is measured."""

from __future__ import annotations

import torch

from paceline.data import load_data
from paceline.models import build_model
from paceline.recipe import DataConfig, OptimizerConfig
from paceline.train.losses import build_objective
from paceline.train.optimizers import build_optimizer
from paceline.train.step import Arithmetic, forward_backward


def warm_up() -> None:
    """One step of a small model: the first optimiser of a process makes torch import its compiler, for seconds."""
    data = load_data(DataConfig(name="synthetic:1x28x28x2", train_samples=2, test_samples=1), seed=0)
    model = build_model("lenet5", data)
    optimizer = build_optimizer(OptimizerConfig(), model.parameters())
    inputs, target = data.train.batch(torch.arange(2), 0)
    forward_backward(model, inputs, target, objective=build_objective("cross-entropy"), arithmetic=Arithmetic())
    optimizer.step()
