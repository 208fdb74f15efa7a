"""Sections of a recipe: model, data, training, optimiser, schedule, measurement."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from paceline.recipe.fields import RecipeSection, option


@dataclass(frozen=True, kw_only=True)
class ModelConfig(RecipeSection):
    section: typing.ClassVar[str] = "model"
    name: str = option("lenet5", "built-in model, file.py:factory or package.module:factory", flag="--model")


@dataclass(frozen=True, kw_only=True)
class DataConfig(RecipeSection):
    section: typing.ClassVar[str] = "data"
    name: str = option(
        "mnist-mini", "name of a data set, folder:PATH, synthetic:CxHxWxCLASSES or file.py:factory", flag="--data"
    )
    dir: str = option("", "folder of the data files; missing ones are downloaded into it", flag="--data-dir")
    download: bool = option(True, "download missing data files", flag="--download/--no-download")
    train_samples: int | None = option(None, "use only the first N training samples", flag="--train-samples", least=1)
    test_samples: int | None = option(None, "use only the first N test samples", flag="--test-samples", least=1)
    augment: bool = option(False, "pad, crop and flip training images at random", flag="--augment/--no-augment")
    normalize: bool = option(
        True, "subtract the data's mean, divide by its standard deviation", flag="--normalize/--no-normalize"
    )
    order: str = option(
        "shuffled",
        "distribution of samples over workers, at random or by label (each worker sees few labels)",
        flag="--data-order",
        choices=("shuffled", "sorted"),
    )
    image_size: int = option(224, "height and width of images of folder:PATH", flag="--image-size", least=8)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RecipeSection):
    section: typing.ClassVar[str] = "train"
    batch_size: int | None = option(
        None, "samples per step of all workers together (default 100)", flag="--batch-size", least=1
    )
    worker_batch_size: int | None = option(None, "samples per step of one worker", flag="--worker-batch-size", least=1)
    micro_batch_size: int | None = option(
        None, "split a worker's batch into pieces of N samples, to save memory", flag="--micro-batch-size", least=1
    )
    epochs: int | None = option(None, "passes over the training data", flag="--epochs", least=1)
    iterations: int | None = option(None, "stop after N steps", flag="--iterations", least=1)
    timed_iterations: int | None = option(
        None, "measure only the first N steps; training continues", flag="--timed-iterations", least=1
    )
    warmup_iterations: int = option(1, "first steps, left out of the times", flag="--warmup-iterations", least=0)
    loss: str = option("cross-entropy", "loss function: cross-entropy or file.py:function", flag="--loss")
    precision: str = option(
        "fp32", "number format of forward and backward", flag="--precision", choices=("fp32", "bf16", "fp64")
    )
    channels_last: bool = option(False, "use memory format channels_last", flag="--channels-last/--no-channels-last")
    compile: bool = option(False, "compile the model with torch.compile", flag="--compile/--no-compile")
    batchnorm: str = option(
        "local",
        "BatchNorm statistics of each worker, of rank 0, averaged, of the global batch, or no running statistics",
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
    momentum: float = option(0.0, "momentum, of sgd and lars only", flag="--momentum", least=0)
    nesterov: bool = option(False, "use Nesterov momentum", flag="--nesterov/--no-nesterov")
    weight_decay: float = option(0.0, "weight decay", flag="--weight-decay", least=0)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(RecipeSection):
    section: typing.ClassVar[str] = "schedule"
    name: str = option("constant", "learning-rate schedule", flag="--schedule", choices=("constant", "step", "cosine"))
    step_epochs: int = option(30, "schedule step: epochs between two drops", flag="--step-epochs", least=1)
    step_factor: float = option(0.1, "schedule step: factor of each drop", flag="--step-factor", least=0)
    warmup: float = option(
        0.0, "epochs of warm-up to the full learning rate: from 0 or, with scale_lr, from lr", flag="--warmup", least=0
    )
    scale_lr: str = option(
        "none", "scale lr with global batch / base batch", flag="--scale-lr", choices=("none", "linear", "sqrt")
    )
    base_batch: int = option(256, "global batch that lr was chosen for, used by scale_lr", flag="--base-batch", least=1)


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(RecipeSection):
    section: typing.ClassVar[str] = "measure"
    spans: bool = option(
        True, "time each part of a step, such as communication, or only the whole step", flag="--measure/--no-measure"
    )
    sample_hz: float = option(
        5.0, "samples per second of CPU, memory, disk and network use (0: none)", flag="--sample-hz", least=0
    )
    profile: str = option("", "steps to trace with torch.profiler: 10:15 is steps 10 to 14", flag="--profile")
    inject: tuple[str, ...] = option(
        (),
        "slow down, kill or hang a worker on purpose: slow:rank=2,ms=200,phase=backward; repeatable",
        flag="--inject",
        is_repeated=True,
    )
    target_accuracy: float | None = option(
        None, "stop at this test accuracy, such as 0.98", flag="--target-accuracy", least=0, most=1
    )
