"""Quantization-aware fine-tuning of a trained model, with any number of workers and any strategy.

A quantization grid maps the values of an activation tensor to 8-bit integers, by a scale, a zero point and limits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from paceline.data import Data, load_data
from paceline.errors import RunError
from paceline.launch.base import Task, WorkerPool
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.fx_trace import trace
from paceline.quantize.graph import Graph
from paceline.quantize.quantized import Grid
from paceline.recipe import Recipe
from paceline.results.quantize import Finetuning
from paceline.results.value import Json
from paceline.strategies import StrategySpec
from paceline.study.entries import Entry
from paceline.study.quantize.source import ModelSource, load_source
from paceline.study.quantize.stages import float_batch
from paceline.train.context import Context, ignore_event
from paceline.train.job import serve
from paceline.train.replicas import mean_state, save_weights
from paceline.train.trainer import Trainer

GridValues = dict[str, Json]  # fields of the quantization grids, by tensor name; plain values can be sent to workers


def finetune_recipe(recipe: Recipe, *, steps: int, lr: float | None) -> Recipe:
    """Return the recipe of the fine-tuning: `steps` steps at the constant learning rate `lr`.

    If `lr` is None, the learning rate is a tenth of the one in `recipe`, with which the model was trained.
    """
    changes: Json = {"train.iterations": steps, "train.log_every": 0, "train.eval_every": 0}
    changes |= {"schedule.name": "constant", "schedule.warmup": 0.0, "schedule.scale_lr": "none"}
    changes |= {"measure.inject": [], "measure.target_accuracy": None, "measure.profile": "", "train.compile": False}
    changes |= {"train.checkpoint_every": 0, "train.batchnorm": "local"}  # BatchNorm is folded already
    changes["train.on_nonfinite"] = "continue"  # the weights are checked at the end
    changes["train.precision"] = "fp32"  # lower precision would add other rounding errors to those of int8
    return recipe.replace({**changes, "optimizer.lr": recipe.optimizer.lr / 10 if lr is None else lr})


def finetune(
    launcher: WorkerPool,
    source: ModelSource,
    recipe: Recipe,
    entry: Entry,
    graph: Graph,
    grids: Mapping[str, Grid],
    *,
    per_channel: bool,
    file: Path,
) -> tuple[Graph, Finetuning]:
    """Fine-tune the fake-quantized network with any number of workers.

    Return the graph with its fine-tuned weights, and a summary of the training. The weights are also saved to `file`.
    Raises RunError if weights are not finite.
    """
    task = Task(
        finetune_job,
        {
            "recipe": entry.recipe(recipe),
            "strategy": entry.spec,
            "source": source,
            "grids": {name: dataclasses.asdict(grid) for name, grid in grids.items()},
            "per_channel": per_channel,
            "checkpoint": str(file.resolve()),
        },
        num_workers=entry.num_workers,
        num_servers=entry.num_servers,
        serve=serve_finetune,
        comm=recipe.comm,
        device="cpu",
        threads=recipe.threads,
        timeout_s=recipe.timeout_s,
    )
    workers = launcher.run(task, ignore_event)
    model = Simulated(graph, Rounding(per_channel=per_channel, grids=grids, biases=True))
    state = load_file(file)
    if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
        raise divergence_error("weights are not finite", recipe)
    model.load_state_dict(state)
    finetuned = Finetuning(strategy=entry.label, workers=entry.num_workers, lr=recipe.optimizer.lr, **workers[0])
    return model.current_graph(), finetuned


def divergence_error(reason: str, recipe: Recipe) -> RunError:
    """Return the error to raise if the fine-tuned weights cannot be used. `reason` says why."""
    return RunError(
        f"fine-tuning diverged after {recipe.train.iterations} steps at learning rate {recipe.optimizer.lr:g}: "
        f"{reason}; try a smaller --lr"
    )


def finetune_job(
    context: Context,
    recipe: Recipe,
    strategy: str,
    source: ModelSource,
    grids: GridValues,
    per_channel: bool,
    checkpoint: str,
) -> Json:
    """Run one worker of the fine-tuning. Return the number of steps, first and last loss, and training time in seconds.

    At the end, rank 0 saves the mean of all replicas to `checkpoint`.
    """
    data, model = _build(recipe, source, grids, per_channel=per_channel)
    trainer = Trainer(recipe, StrategySpec.parse(strategy, recipe.codec).build(), data, context, model)
    history = trainer.run()
    trainer.strategy.finish()
    state = mean_state(trainer.model, context.comm)
    if context.rank == 0:
        save_weights(state, Path(checkpoint), {"model": recipe.model.name, "strategy": strategy})
    return {
        "steps": len(history.loss),
        "first_loss": history.loss[0],
        "last_loss": history.loss[-1],
        "train_s": history.train_s,
    }


def serve_finetune(
    context: Context,
    recipe: Recipe,
    strategy: str,
    source: ModelSource,
    grids: GridValues,
    per_channel: bool,
    checkpoint: str,
) -> None:
    """Run a parameter server of the fine-tuning, which holds the network's parameters but computes no gradients."""
    del checkpoint
    _, model = _build(recipe, source, grids, per_channel=per_channel)
    serve(context, recipe, StrategySpec.parse(strategy, recipe.codec).build(), model)


def _build(recipe: Recipe, source: ModelSource, grids: GridValues, *, per_channel: bool) -> tuple[Data, Simulated]:
    """Load the training data with the recipe's augmentation, and build the fake-quantized network."""
    loaded = load_source(source)
    example, _ = float_batch(loaded.data.train, torch.arange(min(2, len(loaded.data.train))))
    known = {name: Grid(**values) for name, values in grids.items()}
    rounding = Rounding(per_channel=per_channel, grids=known, biases=True)
    return load_data(recipe.data, seed=recipe.seed), Simulated(trace(loaded.model, example), rounding)
