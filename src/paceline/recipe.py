"""What to run: a recipe is everything needed to repeat a run. Frozen, validated, TOML in and out."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from paceline.errors import UsageError, unknown

DEFAULT_RECIPE = "lenet5-mnist"


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    is_repeated: bool = False,
) -> Any:
    """A recipe field: its default, and what the command line and the documentation say of it.

    A list whose items hold commas themselves is repeated on the command line instead of being written as one word.
    """
    metadata = {
        "help": help,
        "flag": flag,
        "choices": choices,
        "least": least,
        "most": most,
        "is_repeated": is_repeated,
    }
    if isinstance(default, list | tuple):
        return field(default_factory=lambda: tuple(default), metadata=metadata)
    return field(default=default, metadata=metadata)


class Section:
    """A group of recipe keys that checks each value against what its field allows."""

    def __post_init__(self) -> None:
        prefix = f"{self.section}." if self.section else ""
        hints = _hints(type(self))
        for item in dataclasses.fields(self):  # type: ignore[arg-type]
            if not dataclasses.is_dataclass(hints[item.name]):
                value = getattr(self, item.name)
                if item.metadata.get("is_repeated") and isinstance(value, str):
                    value = [value]
                value = _coerce(f"{prefix}{item.name}", hints[item.name], value)
                object.__setattr__(self, item.name, value)
                _check_bounds(f"{prefix}{item.name}", value, item.metadata)

    section: typing.ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    section: typing.ClassVar[str] = "model"
    name: str = option("lenet5", "model by name, file.py:factory or package.module:factory", flag="--model")


@dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
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
class TrainConfig(Section):
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
class OptimizerConfig(Section):
    section: typing.ClassVar[str] = "optimizer"
    name: str = option("sgd", "optimiser", flag="--optimizer", choices=("sgd", "adam", "adamw", "lars", "lamb"))
    lr: float = option(0.1, "learning rate", flag="--lr", least=0)
    momentum: float = option(0.0, "momentum of sgd and lars", flag="--momentum", least=0)
    nesterov: bool = option(False, "Nesterov's form of momentum", flag="--nesterov/--no-nesterov")
    weight_decay: float = option(0.0, "weight decay", flag="--weight-decay", least=0)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Section):
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
class MeasureConfig(Section):
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


@dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """Everything needed to repeat a run."""

    name: str = option("custom", "what the run is called")
    description: str = option("", "one line for lists")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    strategy: str = option(
        "all-reduce", "how workers agree: NAME[:option=value...][+codec[:option=value...]]", flag="--strategy"
    )
    strategies: tuple[str, ...] = option(
        (), "what compare compares, separated by commas; one-worker is the reference without peers", flag="--strategies"
    )
    codec: str = option(
        "fp32",
        "what a tensor looks like on the wire, where a strategy names none: NAME[:option=value...]",
        flag="--codec",
    )
    comm: str = option("torch", "how bytes move between workers; auto picks", flag="--comm")
    workers: int = option(4, "processes that train", flag="--workers", least=1)
    threads: int = option(1, "threads per worker", flag="--threads", least=1)
    device: str = option("cpu", "where to compute", flag="--device", choices=("cpu", "cuda"))
    seed: int = option(0, "what every random choice starts from", flag="--seed", least=0)
    timeout_s: float = option(60.0, "longest wait for a peer, in seconds", flag="--timeout", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        train = self.train
        if train.batch_size and train.worker_batch_size and train.batch_size != train.worker_batch_size * self.workers:
            raise UsageError(
                f"batch size {train.batch_size} conflicts with worker batch size {train.worker_batch_size} x "
                f"{self.workers} workers = {train.worker_batch_size * self.workers}; give one of the two"
            )
        if self.batch_size < self.workers:
            raise UsageError(
                f"batch size {self.batch_size} is smaller than {self.workers} workers: some would have no samples; "
                f"use at least {self.workers}, or fewer workers"
            )
        optimizer = self.optimizer
        if optimizer.momentum >= 1:
            raise UsageError(f"optimizer.momentum must be below 1, not {optimizer.momentum:g}")
        if optimizer.momentum and optimizer.name not in ("sgd", "lars"):
            raise UsageError(f"optimizer {optimizer.name} takes no momentum; leave it out, or use sgd or lars")
        if optimizer.nesterov and (optimizer.name != "sgd" or optimizer.momentum == 0):
            raise UsageError("nesterov needs optimizer sgd with a momentum above 0")

    @property
    def batch_size(self) -> int:
        """Samples per step over all workers."""
        if self.train.batch_size:
            return self.train.batch_size
        return self.train.worker_batch_size * self.workers if self.train.worker_batch_size else 100

    def num_steps(self, num_samples: int) -> int:
        """Steps until the first of epochs and iterations is reached."""
        per_epoch = -(-num_samples // self.batch_size)
        epochs, iterations = self.train.epochs, self.train.iterations
        if epochs is None:
            return iterations if iterations is not None else per_epoch
        return min(per_epoch * epochs, iterations) if iterations is not None else per_epoch * epochs

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without those that are unset."""
        return typing.cast(dict[str, Any], _plain(dataclasses.asdict(self)))

    def to_toml(self) -> str:
        values = self.to_dict()
        lines = [f"{key} = {_toml_value(value)}" for key, value in values.items() if not isinstance(value, dict)]
        for key, table in values.items():
            if isinstance(table, dict):
                lines += ["", f"[{key}]", *(f"{name} = {_toml_value(value)}" for name, value in table.items())]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
        return typing.cast(Recipe, _build(Recipe, values, source, ""))

    @staticmethod
    def from_toml(text: str, source: str = "recipe") -> Recipe:
        try:
            return Recipe.from_dict(tomllib.loads(text), source)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{source} is not valid TOML: {error}") from None

    def replace(self, changes: Mapping[str, Any]) -> Recipe:
        """A copy with dotted keys changed; the other name of a changed quantity is dropped with it."""
        values = self.to_dict()
        for key, other in EXCLUSIVE.items():
            if changes.get(key) is not None and changes.get(other) is None:
                section, _, name = other.partition(".")
                values[section].pop(name, None)
        if changes.get("data.name", self.data.name) != self.data.name:
            for name in ("train_samples", "test_samples", "dir"):  # said of the other data
                values["data"].pop(name, None)
        if changes.get("optimizer.name", self.optimizer.name) != self.optimizer.name:
            for name in ("momentum", "nesterov"):  # said of the other optimiser
                values["optimizer"].pop(name, None)
        if any(key not in SAME_STORY and value is not None for key, value in changes.items()):
            values["description"] = ""  # it told of other settings
        if changes.keys() & {"model.name", "data.name"}:
            model, data = (
                changes.get(key, old) for key, old in (("model.name", self.model.name), ("data.name", self.data.name))
            )
            values["name"] = f"{_short(model)}-{_short(data)}"
        for key, value in changes.items():
            section, dot, name = key.partition(".")
            known = dict(recipe_keys())
            if key not in known:
                raise unknown("recipe key", key, known)
            table = values[section] if dot else values
            if value is None:
                table.pop(name if dot else section, None)
            else:
                table[name if dot else section] = value
        return Recipe.from_dict(values)


# Two names of one quantity: changing one drops the other, so that an override never conflicts with a recipe's file.
EXCLUSIVE = {
    "train.batch_size": "train.worker_batch_size",
    "train.worker_batch_size": "train.batch_size",
    "train.iterations": "train.epochs",
    "train.epochs": "train.iterations",
}

# Keys that can change while a recipe's name and description stay true.
SAME_STORY = {
    "strategy",
    "strategies",
    "codec",
    "comm",
    "seed",
    "timeout_s",
    "data.dir",
    "data.download",
    "train.log_every",
    "train.checkpoint_every",
    "measure.spans",
    "measure.sample_hz",
    "measure.profile",
}


def _short(name: str) -> str:
    """The name of a model or of data without what leads to it: `path/to/file.py:make` is `file`."""
    module, _, rest = name.partition(":")
    if module in ("folder", "synthetic"):
        return module
    return Path(module).stem if rest else name


def recipe_keys(cls: type = Recipe, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Every dotted key of a recipe with its field."""
    hints = _hints(cls)
    for item in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from recipe_keys(hints[item.name], f"{item.name}.")
        else:
            yield f"{prefix}{item.name}", item


def key_type(key: str) -> Any:
    """The type of the value behind a dotted key."""
    section, dot, name = key.partition(".")
    return _hints(_hints(Recipe)[section])[name] if dot else _hints(Recipe)[section]


def load_recipe(name_or_path: str) -> Recipe:
    """A built-in recipe by name, or a TOML file by path."""
    known = builtin_recipes()
    if name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or path.exists():
        try:
            return Recipe.from_toml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe {name_or_path!r} cannot be read: {error}") from None
    raise unknown("recipe", name_or_path, known)


def builtin_recipes() -> dict[str, Recipe]:
    folder = resources.files("paceline") / "recipes"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    found = [Recipe.from_toml(entry.read_text(encoding="utf-8"), entry.name) for entry in files]
    return {recipe.name: recipe for recipe in found}


def parse_set(assignments: list[str]) -> dict[str, Any]:
    """`key=value` words as changes; a value is read as TOML reads it, or else as a string."""
    changes: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r} is not key=value")
        known = dict(recipe_keys())
        if key not in known:
            raise unknown("recipe key", key, known)
        try:
            changes[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key] = text
    return changes


def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(cls: type, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = _hints(cls)
    names = [item.name for item in dataclasses.fields(cls)]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in names:
            raise unknown(f"key in {source}", f"{prefix}{key}", [f"{prefix}{name}" for name in names])
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UsageError(f"{source}: {key} is a table of keys, not {value!r}")
            value = _build(typing.cast(type, hints[key]), value, source, f"{key}.")
        arguments[key] = value
    return cls(**arguments)


def _coerce(key: str, hint: Any, value: Any) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(part for part in hint.__args__ if part is not type(None))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if typing.get_origin(hint) is tuple:
        words = value.split(",") if isinstance(value, str) else value
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
            return tuple(word.strip() for word in words if word.strip())
        raise UsageError(f"{key} must be a list of strings, not {value!r}")
    if type(value) is not hint:
        raise UsageError(f"{key} must be {_TYPE_NAMES[hint]}, not {value!r}")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def _check_bounds(key: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if metadata.get("choices") and value not in metadata["choices"]:
        raise unknown(key, str(value), metadata["choices"])
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{key} must be a finite number, not {value}")
    least = metadata.get("least")
    if least is not None and value is not None and not value >= least:
        raise UsageError(f"{key} must be at least {least:g}, not {value}")
    most = metadata.get("most")
    if most is not None and value is not None and not value <= most:
        named = f"{metadata['flag']} ({key})" if metadata.get("flag") else key
        hint = f": it is a fraction, {value / 100:g} for {value:g} %" if most == 1 and value <= 100 else ""
        raise UsageError(f"{named} must be at most {most:g}, not {value:g}{hint}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
