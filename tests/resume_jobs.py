"""Train a toy with checkpoints, or from a checkpoint: a function that test workers run on threads or in processes."""

from __future__ import annotations

from typing import Any

from paceline.results import to_json
from paceline.strategies import StrategySpec
from paceline.train.checkpointing import CheckpointPlace, Checkpoints
from paceline.train.context import Context
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe


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
