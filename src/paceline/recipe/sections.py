"""Sections of a recipe: model, data, training, optimiser, schedule, measurement."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from paceline.recipe.fields import RecipeSection, option


@dataclass(frozen=True, kw_only=True)
class ModelConfig(RecipeSection):
    section: typing.ClassVar[str] = "model"
    name: str = option("lenet5", "model by name, file.py:factory or package.module:factory", flag="--model")


@dataclass(frozen=True, kw_only=True)
class DataConfig(RecipeSection):
    section: typing.ClassVar[str] = "data"
    name: str = option(
        "mnist-mini", "data by name, folder:PATH, synthetic:CxHxWxCLASSES or file.py:factory", flag="--data"
    )
    dir: str = option("", "where the data files are, or go when downloaded", flag="--data-dir")
    download: bool = option(True, "fetch missing files", flag="--download/--no-download")
    train_samples: int | None = option(None, "use only the first N training samples", flag="--train-samples", least=1)
    test_samples: int | None = option(None, "use only the first N test samples", flag="--test-samples", least=1)
    augment: bool = option(False, "pad, crop and flip training images", flag="--augment/--no-augment")
    normalize: bool = option(
        True, "subtract the data's mean, divide by its deviation", flag="--normalize/--no-normalize"
    )
    order: str = option(
        "shuffled",
        "who sees what: samples shuffled over all workers, or sorted by label, so that each sees a few labels only",
        flag="--data-order",
        choices=("shuffled", "sorted"),
    )
    image_size: int = option(224, "side of decoded folder images", flag="--image-size", least=8)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RecipeSection):
    section: typing.ClassVar[str] = "train"
    batch_size: int | None = option(
        None, "samples per step over all workers (default 100)", flag="--batch-size", least=1
    )
    worker_batch_size: int | None = option(None, "samples per step and worker", flag="--worker-batch-size", least=1)
    micro_batch_size: int | None = option(
        None, "split a worker's batch into pieces of N, to save memory", flag="--micro-batch-size", least=1
    )
    epochs: int | None = option(None, "passes over the data", flag="--epochs", least=1)
    iterations: int | None = option(None, "stop after N steps", flag="--iterations", least=1)
    timed_iterations: int | None = option(
        None, "take times from the first N steps only, and still finish", flag="--timed-iterations", least=1
    )
    warmup_iterations: int = option(1, "first steps left out of the times", flag="--warmup-iterations", least=0)
    loss: str = option("cross-entropy", "cross-entropy or file.py:loss", flag="--loss")
    precision: str = option(
        "fp32", "arithmetic of forward and backward", flag="--precision", choices=("fp32", "bf16", "fp64")
    )
    channels_last: bool = option(False, "images as NHWC in memory", flag="--channels-last/--no-channels-last")
    compile: bool = option(False, "use torch.compile", flag="--compile/--no-compile")
    batchnorm: str = option(
        "local",
        "BatchNorm statistics; own, rank 0's, averaged, of the global batch, or none kept",
        flag="--batchnorm",
        choices=("local", "rank0", "average", "sync", "off"),
    )
    log_every: int = option(0, "print epoch, iteration and loss every N steps (0: never)", flag="--log-every", least=0)
    eval_every: int = option(
        0, "evaluate on the test set every N epochs (0: at the end only)", flag="--eval-every", least=0
    )
    checkpoint_every: int = option(
        0, "save the weights every N epochs (0: at the end only)", flag="--checkpoint-every", least=0
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(RecipeSection):
    section: typing.ClassVar[str] = "optimizer"
    name: str = option("sgd", "optimiser", flag="--optimizer", choices=("sgd", "adam", "adamw", "lars", "lamb"))
    lr: float = option(0.1, "learning rate", flag="--lr", least=0)
    momentum: float = option(0.0, "momentum of sgd and lars", flag="--momentum", least=0)
    nesterov: bool = option(False, "Nesterov's form of momentum", flag="--nesterov/--no-nesterov")
    weight_decay: float = option(0.0, "weight decay", flag="--weight-decay", least=0)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(RecipeSection):
    section: typing.ClassVar[str] = "schedule"
    name: str = option("constant", "learning rate over time", flag="--schedule", choices=("constant", "step", "cosine"))
    step_epochs: int = option(30, "step schedule: epochs between drops", flag="--step-epochs", least=1)
    step_factor: float = option(0.1, "step schedule: what a drop multiplies by", flag="--step-factor", least=0)
    warmup: float = option(
        0.0, "epochs of rise to the peak: from lr where scale_lr raises it, else from 0", flag="--warmup", least=0
    )
    scale_lr: str = option(
        "none", "grow lr with batch / base batch", flag="--scale-lr", choices=("none", "linear", "sqrt")
    )
    base_batch: int = option(256, "global batch that lr is meant for", flag="--base-batch", least=1)


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(RecipeSection):
    section: typing.ClassVar[str] = "measure"
    spans: bool = option(
        True, "record where each worker's time goes; without, only its steps", flag="--measure/--no-measure"
    )
    sample_hz: float = option(
        5.0, "samples of each worker's resources per second (0: none)", flag="--sample-hz", least=0
    )
    profile: str = option(
        "", "steps to trace with torch's profiler: 10:15 is steps 10 to 14, the end is not among them", flag="--profile"
    )
    inject: tuple[str, ...] = option(
        (),
        "slow down, kill or hang a worker on purpose, as slow:rank=2,ms=200,phase=backward; may be given again",
        flag="--inject",
        is_repeated=True,
    )
    target_accuracy: float | None = option(
        None, "stop when the test set's accuracy reaches this fraction", flag="--target-accuracy", least=0, most=1
    )
