"""Checks of a recipe before any worker starts: data, model, comm, device, and support for emulated nodes.

A comm is a communication backend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from paceline.codecs import TensorSpec
from paceline.comm import comms
from paceline.data import load_data, make_plan
from paceline.data.base import BadSample, Tree, call_model
from paceline.errors import RunError, UsageError
from paceline.launch.base import LaunchRequest, Task
from paceline.launch.emulated import Emulated
from paceline.measure.inject import check_injections
from paceline.measure.steps import StepRange, check_within
from paceline.models import build_model
from paceline.recipe import ClusterConfig, Recipe
from paceline.study.entries import Entry, check_models
from paceline.train.context import Context, ignore_event
from paceline.train.step import CROSS_ENTROPY, Arithmetic, build_objective, forward


def without_cluster(recipe: Recipe) -> Recipe:
    """Return the recipe without its emulated nodes."""
    return recipe.replace({f"cluster.{key}": value for key, value in vars(ClusterConfig()).items()})


def reason_against_cluster(recipe: Recipe) -> str:
    """Try to set up the recipe's emulated nodes. Return why that failed, or an empty string if it worked."""
    try:
        with Emulated(LaunchRequest(cluster=recipe.cluster)).open(1) as pool:
            pool.run(Task(_do_nothing, timeout_s=recipe.timeout_s), ignore_event)
    except (UsageError, RunError) as error:
        return str(error)
    return ""


def _do_nothing(context: Context) -> int:
    return context.comm.rank


@torch.no_grad()
def _check_outputs(recipe: Recipe, num_classes: int, model: torch.nn.Module, inputs: Tree) -> None:
    """Raise UsageError if a classifier trained with cross-entropy has fewer outputs than the data has classes."""
    output = call_model(model, inputs)
    if recipe.train.loss != CROSS_ENTROPY or not isinstance(output, torch.Tensor) or output.dim() < 2:
        return
    if output.shape[1] < num_classes:
        raise UsageError(
            f"model {recipe.model.name!r} has {output.shape[1]} outputs, but data {recipe.data.name!r} has "
            f"{num_classes} classes; use a model with at least {num_classes} outputs"
        )


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of the model and of the data set, and the number of training steps."""

    num_parameters: int
    num_train_samples: int
    num_test_samples: int
    steps_per_epoch: int
    total_steps: int
    skipped: tuple[BadSample, ...] = ()  # samples that cannot be read and are left out


def preflight(recipe: Recipe, entries: list[Entry] | None = None) -> ModelFacts:
    """Load the data, build the model and run one forward pass. Raise UsageError if the recipe cannot work.

    If `entries` are passed, also check that their strategies can train the model.
    """
    if not comms.get(recipe.comm).between_processes:
        usable = [name for name, comm in comms.classes.items() if comm.between_processes]
        raise UsageError(
            f"comm {recipe.comm!r} connects threads of one process, but workers are processes; "
            f"use {' or '.join(usable)}"
        )
    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a GPU, and torch finds none here; use --device cpu")
    if recipe.train.batchnorm == "sync" and recipe.train.micro_batch_size:
        raise UsageError("--batchnorm sync cannot be combined with micro-batches; remove --micro-batch-size")
    objective = build_objective(recipe.train.loss)
    data = load_data(recipe.data, seed=recipe.seed)
    num_samples = len(data.train)
    if num_samples < recipe.workers:
        raise UsageError(
            f"{recipe.workers} workers need at least {recipe.workers} training samples, but there are {num_samples}; "
            "use fewer workers or more samples"
        )
    make_plan(
        data.train,
        batch_size=recipe.batch_size,
        num_workers=recipe.workers,
        seed=recipe.seed,
        order=recipe.data.order,
    )
    if len(data.test) == 0:
        raise UsageError(
            f"data {recipe.data.name!r} has no test samples; every run evaluates the model, so use data with a test set"
        )
    if recipe.batch_size > num_samples:
        raise UsageError(
            f"batch size {recipe.batch_size} is larger than the {num_samples:,} training samples of "
            f"{recipe.data.name}; use at most {num_samples}, or more samples (--train-samples)"
        )
    total_steps = recipe.num_steps(num_samples)
    if recipe.measure.profile:
        check_within(StepRange.parse(recipe.measure.profile, "--profile"), total_steps, "--profile")
    check_injections(recipe.measure.inject, num_workers=recipe.workers, total_steps=total_steps)
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model.name, data)
    check_models(
        entries or [], [TensorSpec(p.numel(), p.element_size()) for p in model.parameters() if p.requires_grad]
    )
    arithmetic = Arithmetic("fp64" if recipe.train.precision == "fp64" else "fp32")
    inputs, target = data.train.batch(torch.arange(min(2, num_samples)), 0)
    try:
        _check_outputs(recipe, data.num_classes, arithmetic.place(model).eval(), arithmetic.prepare(inputs))
        output = forward(arithmetic.place(model).eval(), inputs, target, objective=objective, arithmetic=arithmetic)
    except UsageError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"model {recipe.model.name!r} with loss {recipe.train.loss!r} fails on data {recipe.data.name!r}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if recipe.measure.target_accuracy is not None and not output.num_answers:
        raise UsageError(
            f"--target-accuracy needs an accuracy, and loss {recipe.train.loss!r} has none; define "
            "accuracy(output, target) in the same file, or remove the target"
        )
    return ModelFacts(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        num_train_samples=num_samples,
        num_test_samples=len(data.test),
        steps_per_epoch=math.ceil(num_samples / recipe.batch_size),
        total_steps=total_steps,
        skipped=data.skipped,
    )
