"""Sections of a recipe (all settings of a run): help text, default and bounds of every key. Also parses `--cluster`."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError, unknown
from paceline.parsing import bits_per_s, fraction, num_bytes, seconds, whole_number
from paceline.recipe.checkpoint_interval import CheckpointInterval
from paceline.recipe.fields import Changes, RecipeSection, option

CLUSTER_EXAMPLE = "nodes=4,cpus=0.5,bandwidth=1gbit"


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
    on_bad_sample: str = option(
        "stop",
        "if a sample cannot be read: stop the run, or find and skip all such samples before training",
        flag="--on-bad-sample",
        choices=("stop", "skip"),
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
    warmup_iterations: int = option(1, "leave the first N steps out of the times", flag="--warmup-iterations", least=0)
    loss: str = option("cross-entropy", "loss function: cross-entropy or file.py:function", flag="--loss")
    precision: str = option(
        "fp32", "number format of forward and backward", flag="--precision", choices=("fp32", "bf16", "fp64")
    )
    channels_last: bool = option(False, "use memory format channels_last", flag="--channels-last/--no-channels-last")
    compile: bool = option(False, "compile the model with torch.compile", flag="--compile/--no-compile")
    batchnorm: str = option(
        "local",
        "BatchNorm statistics: local (each worker's own), rank0 (those of rank 0), average (of all workers), sync (of "
        "the global batch) or off (no running statistics)",
        flag="--batchnorm",
        choices=("local", "rank0", "average", "sync", "off"),
    )
    on_nonfinite: str = option(
        "stop",
        "if a loss or gradient is NaN or infinite: stop the run, skip the update on all workers, or continue",
        flag="--on-nonfinite",
        choices=("stop", "skip", "continue"),
    )
    log_every: int = option(0, "print epoch, step and loss every N steps (0: never)", flag="--log-every", least=0)
    eval_every: int = option(
        0, "evaluate on the test set every N epochs (0: at the end only)", flag="--eval-every", least=0
    )
    checkpoint_every: int | str = option(
        0,
        "write a checkpoint to resume from every N epochs, or every 500steps or 10m (also s, h); 0: never",
        flag="--checkpoint-every",
        least=0,
    )
    keep_checkpoints: int = option(3, "keep the last N checkpoints", flag="--keep", least=1)
    check_replicas: int = option(
        0,
        "compare the workers' replicas every N steps; stop if they differ (0: never)",
        flag="--check-replicas",
        least=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.checkpoint_interval  # raises UsageError if the text is invalid

    @property
    def checkpoint_interval(self) -> CheckpointInterval | None:
        """Return the interval between checkpoints, or None if the run writes none."""
        return CheckpointInterval.parse(self.checkpoint_every)


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
    step_epochs: int = option(
        30, "epochs between two drops of the learning rate, for --schedule step", flag="--step-epochs", least=1
    )
    step_factor: float = option(
        0.1, "factor of each drop of the learning rate, for --schedule step", flag="--step-factor", least=0
    )
    warmup: float = option(
        0.0,
        "epochs in which the learning rate rises from 0 (with --scale-lr, from lr) to its full value",
        flag="--warmup",
        least=0,
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
        5.0, "how often per second to record CPU, memory, disk and network use (0: never)", flag="--sample-hz", least=0
    )
    profile: str = option("", "steps to trace with torch.profiler: 10:15 is steps 10 to 14", flag="--profile")
    inject: tuple[str, ...] = option(
        (),
        "slow down, kill, hang or stop a worker on purpose: slow:rank=2,ms=200; repeatable",
        flag="--inject",
        is_repeated=True,
    )
    target_accuracy: float | None = option(
        None, "stop at this test accuracy, such as 0.98", flag="--target-accuracy", least=0, most=1
    )


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(RecipeSection):
    """Settings of an emulated cluster: the number of nodes, and the network link, cores and memory of each node."""

    section: typing.ClassVar[str] = "cluster"
    nodes: int = option(0, "nodes to emulate on this machine (0: none, workers are plain processes)", least=0)
    cpus: float | None = option(None, "cores of each node, such as 0.5; unset: not limited", least=0.01)
    bandwidth: str = option("", "rate of each node's link in both directions, such as 1gbit; empty: not limited")
    latency: str = option("", "delay of each node's link, such as 1ms; empty: none")
    loss: str = option("", "share of lost packets, such as 0.1%; empty: none")
    memory: str = option("", "memory limit of each node, such as 2g; empty: not limited")
    links: tuple[str, ...] = option((), "rates between two nodes, such as 0-2:100mbit", is_repeated=True)
    slow: tuple[str, ...] = option(
        (), "slow nodes with their fraction of the others' cores, such as 3:0.5", is_repeated=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = [item.name for item in dataclasses.fields(self) if getattr(self, item.name) != _default(item)]
        if changed and not self.nodes:
            raise UsageError(
                f"cluster.{changed[0]} is set, but cluster.nodes is 0; set the number of nodes (--cluster nodes=N)"
            )
        # Each of these properties raises UsageError if its text is invalid.
        _ = self.bits_per_s, self.latency_s, self.loss_fraction, self.memory_bytes, self.link_bits_per_s, self.slowness

    def __str__(self) -> str:
        """Return the cluster as text that `--cluster` accepts, or an empty string if there are no nodes."""
        words = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            for part in value if isinstance(value, tuple) else [value]:
                if part:
                    words.append(f"{item.name}={part:g}" if isinstance(part, float) else f"{item.name}={part}")
        return ",".join(words)

    @property
    def bits_per_s(self) -> float | None:
        """Return the rate of each node's link in bits per second, or None if it is not limited."""
        return bits_per_s("cluster.bandwidth", self.bandwidth) if self.bandwidth else None

    @property
    def latency_s(self) -> float | None:
        return seconds("cluster.latency", self.latency) if self.latency else None

    @property
    def loss_fraction(self) -> float | None:
        return fraction("cluster.loss", self.loss) if self.loss else None

    @property
    def memory_bytes(self) -> int | None:
        return num_bytes("cluster.memory", self.memory) if self.memory else None

    @property
    def link_bits_per_s(self) -> dict[tuple[int, int], float]:
        """Return a dict from pair of node numbers (smaller, larger) to the rate of their link, in bits per second."""
        rates: dict[tuple[int, int], float] = {}
        for word in self.links:
            pair, _, rate = word.partition(":")
            ends = pair.split("-")
            if len(ends) != 2 or not rate or any(whole_number(end) is None for end in ends):
                raise UsageError(f"cluster.links {word!r} is not NODE-NODE:RATE, such as 0-2:100mbit")
            first, second = sorted(self._node("links", word, end) for end in ends)
            if first == second or (first, second) in rates:
                reason = (
                    "joins a node with itself"
                    if first == second
                    else "sets the rate of the same two nodes again; remove one"
                )
                raise UsageError(f"cluster.links {word!r} {reason}")
            rates[first, second] = bits_per_s("cluster.links", rate)
        return rates

    @property
    def slowness(self) -> dict[int, float]:
        """Return a dict from the number of each slow node to the ratio between its cores and those of a normal node."""
        fractions: dict[int, float] = {}
        for word in self.slow:
            node, _, text = word.partition(":")
            try:
                part = float(text)
            except ValueError:
                part = 0.0
            if whole_number(node) is None or not 0 < part <= 1:
                raise UsageError(f"cluster.slow {word!r} is not NODE:FRACTION, such as 3:0.5 (a fraction of at most 1)")
            number = self._node("slow", word, node)
            if number in fractions:
                raise UsageError(f"cluster.slow {word!r} sets the fraction of node {number} again; remove one")
            fractions[number] = part
        return fractions

    def _node(self, key: str, word: str, text: str) -> int:
        number = whole_number(text)
        if number is None or number >= self.nodes:
            raise UsageError(f"cluster.{key} {word!r}: node {text} is not one of 0 to {self.nodes - 1} (cluster.nodes)")
        return number


def parse_cluster(text: str) -> Changes:
    """Parse a text such as `nodes=4,cpus=0.5,links=0-2:100mbit` into changes of a recipe.

    The changes set the whole section: keys that the text does not name get their defaults.
    """
    fields = {item.name: item for item in dataclasses.fields(ClusterConfig)}
    words: dict[str, list[str]] = {}
    for word in (piece.strip() for piece in text.split(",")):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not value:
            raise UsageError(f"--cluster {text!r}: {word!r} is not key=value; an example: {CLUSTER_EXAMPLE}")
        if name not in fields:
            raise unknown("key in --cluster", name, fields)
        words.setdefault(name, []).append(value)
    if "nodes" not in words:
        raise UsageError(f"--cluster {text!r} does not say how many nodes; an example: {CLUSTER_EXAMPLE}")
    changes = {name: _convert(name, given) for name, given in words.items()}
    ClusterConfig(**changes)
    return {f"cluster.{name}": changes.get(name, _default(item)) for name, item in fields.items()}


def cluster_of(text: str | None) -> ClusterConfig:
    """Return the cluster settings in the text of `--cluster`. If the text is None, the cluster has no nodes."""
    changes = parse_cluster(text) if text is not None else {}
    return ClusterConfig(**{key.removeprefix("cluster."): value for key, value in changes.items()})


def _convert(name: str, given: list[str]) -> Any:
    if name in ("links", "slow"):
        return tuple(given)
    if len(given) > 1:
        raise UsageError(f"--cluster names {name} twice: {given[0]} and {given[1]}")
    if name not in ("nodes", "cpus"):
        return given[0]
    try:
        return int(given[0]) if name == "nodes" else float(given[0])
    except ValueError:
        kind = "a whole number" if name == "nodes" else "a number"
        raise UsageError(f"--cluster {name} must be {kind}, not {given[0]!r}") from None


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
