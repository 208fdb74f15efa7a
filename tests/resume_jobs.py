"""Train toys with checkpoints, or from a checkpoint: functions that test workers run on threads or in processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from library_uses import in_session
from paceline.library.world import World
from paceline.results import to_json
from paceline.strategies import StrategySpec
from paceline.train.checkpointing import CheckpointPlace, Checkpoints
from paceline.train.context import Context
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import CLASSES, toy_data, toy_model, toy_recipe


def train_toy(
    context: Context,
    strategy: str,
    changes: dict[str, Any] | None = None,
    model: str = "plain",
    folder: str = "",
    resume_step: int = 0,
) -> dict[str, Any]:
    """Train a toy, write a checkpoint after every step if there is a folder, and return what must not change.

    If `resume_step` is not 0, training continues from the checkpoint of that step.
    """
    recipe = toy_recipe(context.world_size, changes)
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), toy_data(), context, toy_model(model))
    context.comm.counter.clear()
    place = CheckpointPlace(folder=folder, step=resume_step, attempt=int(resume_step > 0))
    checkpoints = Checkpoints(trainer, place, strategy)
    checkpoints.restore()
    history = trainer.run(on_checkpoint=lambda num_steps: checkpoints.after_step(num_steps, 0.0))
    checkpoints.finish()
    before_finish = parameter_digest(trainer.model)
    counted = dict(context.comm.counter.nbytes)
    trainer.strategy.finish()
    return {
        "before_finish": before_finish,
        "digest": parameter_digest(trainer.model),
        "buffers": {name: buffer.flatten().tolist() for name, buffer in trainer.model.named_buffers()},
        "loss": list(history.loss),
        "num_samples": list(history.num_samples),
        "evaluations": [{**to_json(one), "train_s": 0} for one in history.evaluations],
        "sent_bytes": list(history.step_sent_bytes),
        "counted": counted,
        "metrics": trainer.strategy.metrics(),
    }


def own_loop(context: Context, strategy: str, folder: str, save_at: int = 0, optimizer: str = "Adam") -> Any:
    """Train a toy in a user's loop. Save after step `save_at`; if it is 0, load what is in `folder` instead."""
    return in_session(World(existing=context.comm), _own_loop, strategy, folder, save_at, optimizer)


def _own_loop(strategy: str, folder: str, save_at: int, optimizer_name: str) -> Any:
    torch.manual_seed(paceline.rank())
    layers = [nn.Flatten(), nn.Linear(72, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, CLASSES)]
    model = nn.Sequential(*layers).double()
    data = toy_data(samples=25).train
    optimizer: Any = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01)
    replica, optimizer = paceline.parallel(model, optimizer, strategy)
    loader = paceline.shard(DataLoader(TensorDataset(data.inputs, data.targets), batch_size=3, shuffle=True))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    extra = {} if save_at else paceline.load(folder, model, optimizer)
    if extra:
        schedule.load_state_dict(extra["schedule"])
    step = extra.get("step", 0)
    losses = []
    for epoch in range(extra.get("epoch", 0), 3):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            step += 1
            if step == save_at:
                paceline.save(folder, model, optimizer, step=step, epoch=epoch, schedule=schedule.state_dict())
        schedule.step()
    return parameter_digest(model), [buffer.tolist() for buffer in model.buffers()], step, losses


def load_toy(context: Context, folder: str, strategy: str = "overlap", num_loaders: int = 0, hidden: int = 16) -> Any:
    """Load a checkpoint of `_own_loop` into a model that may not fit."""

    def use() -> Any:
        model = nn.Sequential(nn.Flatten(), nn.Linear(72, hidden), nn.Linear(hidden, CLASSES)).double()
        _, optimizer = paceline.parallel(model, torch.optim.Adam(model.parameters()), strategy)
        for _ in range(num_loaders):
            paceline.shard(DataLoader(TensorDataset(toy_data(samples=25).train.inputs), batch_size=3))
        return paceline.load(folder, model, optimizer)

    return in_session(World(existing=context.comm), use)
