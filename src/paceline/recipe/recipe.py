"""Recipes, which hold all settings of a run: check, change, read and write them, and load the built-in ones."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from paceline.errors import UsageError, unknown
from paceline.parsing import Table, read_toml, read_toml_value
from paceline.recipe.fields import Changes, RecipeSection, hints_of, option
from paceline.recipe.sections import (
    ClusterConfig,
    DataConfig,
    MeasureConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeSection):
    """All settings needed to repeat a run."""

    name: str = option("custom", "name of the run")
    description: str = option("", "one line that describes the recipe in lists")
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    strategy: str = option(
        "all-reduce", "how workers synchronise: NAME[:option=value...][+codec[:option=value...]]", flag="--strategy"
    )
    strategies: tuple[str, ...] = option(
        (),
        "strategies to compare, separated by commas; one-worker trains with a single worker, as the baseline",
        flag="--strategies",
    )
    codec: str = option(
        "fp32",
        "encoding of tensors on the wire, if a strategy has no +CODEC of its own: NAME[:option=value...]",
        flag="--codec",
    )
    comm: str = option("torch", "communication backend: torch, shm, hierarchical, or auto to choose one", flag="--comm")
    workers: int = option(4, "number of worker processes", flag="--workers", least=1)
    threads: int = option(1, "threads of each worker", flag="--threads", least=1)
    device: str = option("cpu", "device of the workers", flag="--device", choices=("cpu", "cuda"))
    seed: int = option(0, "seed of all random numbers", flag="--seed", least=0)
    timeout_s: float = option(
        60.0, "seconds to wait for another worker before the run fails", flag="--timeout", least=1
    )

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
        """Return the number of samples per step over all workers."""
        if self.train.batch_size:
            return self.train.batch_size
        return self.train.worker_batch_size * self.workers if self.train.worker_batch_size else 100

    def num_steps(self, num_samples: int) -> int:
        """Return the number of steps of the run, for `num_samples` training samples.

        The run ends after `epochs` or after `iterations`, whichever comes first. If neither is set, there is one epoch.
        """
        per_epoch = -(-num_samples // self.batch_size)
        epochs, iterations = self.train.epochs, self.train.iterations
        if epochs is None:
            return iterations if iterations is not None else per_epoch
        return min(per_epoch * epochs, iterations) if iterations is not None else per_epoch * epochs

    def to_dict(self) -> Table:
        """Return the recipe as nested dicts of plain values. Keys whose value is None are left out."""
        return typing.cast(Table, _plain(dataclasses.asdict(self)))

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @property
    def digest(self) -> str:
        """Return a hash (SHA-256, hexadecimal) of all settings that the trained parameters depend on."""
        values = self.to_dict()
        for key in KEYS_WITHOUT_EFFECT:
            section, dot, name = key.partition(".")
            (values.get(section, {}) if dot else values).pop(name if dot else section, None)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @staticmethod
    def from_dict(values: Mapping[str, Any], source: str = "recipe") -> Recipe:
        return typing.cast(Recipe, _build(Recipe, values, source, ""))

    @staticmethod
    def from_toml(text: str, source: str = "recipe") -> Recipe:
        return Recipe.from_dict(read_toml(text, source), source)

    def replace(self, changes: Mapping[str, Any]) -> Recipe:
        """Return a copy with new values for dotted keys such as `train.epochs`. None resets a key to its default.

        Settings that no longer apply are reset too, unless `changes` sets them: a new `train.epochs` resets
        `train.iterations` (see EXCLUSIVE), a new data set resets the sizes and folder of the data, a new optimiser
        resets `momentum` and `nesterov`, and most changes reset the description (see KEYS_NOT_DESCRIBED). A new model
        or data set also changes the recipe's name.
        """
        values = self.to_dict()
        for key, other in EXCLUSIVE.items():
            if changes.get(key) is not None and changes.get(other) is None:
                section, _, name = other.partition(".")
                values[section].pop(name, None)
        if changes.get("data.name", self.data.name) != self.data.name:
            for name in ("train_samples", "test_samples", "dir"):  # settings of the previous data
                values["data"].pop(name, None)
        if changes.get("optimizer.name", self.optimizer.name) != self.optimizer.name:
            for name in ("momentum", "nesterov"):  # settings of the previous optimiser
                values["optimizer"].pop(name, None)
        if any(key not in KEYS_NOT_DESCRIBED and value is not None for key, value in changes.items()):
            values["description"] = ""  # the old text describes the previous settings
        if changes.keys() & {"model.name", "data.name"}:
            model, data = changes.get("model.name", self.model.name), changes.get("data.name", self.data.name)
            values["name"] = f"{_short(str(model))}-{_short(str(data))}"  # from_dict refuses values other than strings
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


# Pairs of keys for one quantity. Changing one resets the other, so that an option never conflicts with a recipe file.
EXCLUSIVE = {
    "train.batch_size": "train.worker_batch_size",
    "train.worker_batch_size": "train.batch_size",
    "train.iterations": "train.epochs",
    "train.epochs": "train.iterations",
}

# Keys that no recipe's description mentions. Changing them keeps the description.
KEYS_NOT_DESCRIBED = {
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
    "train.check_replicas",
    "train.keep_checkpoints",
    "measure.spans",
    "measure.sample_hz",
    "measure.profile",
}

# Keys that the trained parameters do not depend on. They may differ when a run is resumed.
KEYS_WITHOUT_EFFECT = (KEYS_NOT_DESCRIBED - {"strategy", "strategies", "codec", "comm", "seed"}) | {
    "name",
    "description",
    "strategies",
    "train.timed_iterations",
    "train.warmup_iterations",
    "measure.inject",
}


def _short(name: str) -> str:
    """Shorten a model or data set name: `path/to/file.py:make` becomes `file`, and `folder:PATH` becomes `folder`."""
    module, _, rest = name.partition(":")
    if module in ("folder", "synthetic"):
        return module
    return Path(module).stem if rest else name


def recipe_keys(cls: type = Recipe, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield every dotted key of a recipe with its dataclass field."""
    hints = hints_of(cls)
    for item in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from recipe_keys(hints[item.name], f"{item.name}.")
        else:
            yield f"{prefix}{item.name}", item


def key_type(key: str) -> Any:
    """Return the type of a dotted key's value."""
    section, dot, name = key.partition(".")
    return hints_of(hints_of(Recipe)[section])[name] if dot else hints_of(Recipe)[section]


def _build(cls: type, values: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = hints_of(cls)
    names = [item.name for item in dataclasses.fields(cls)]
    arguments = {}
    for key, value in values.items():
        if key not in names:
            raise unknown(f"key in {source}", f"{prefix}{key}", [f"{prefix}{name}" for name in names])
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UsageError(f"{source}: {key} is a table of keys, not {value!r}")
            value = _build(typing.cast(type, hints[key]), value, source, f"{key}.")
        arguments[key] = value
    return cls(**arguments)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    return list(value) if isinstance(value, tuple) else value


DEFAULT_RECIPE = "lenet5-mnist"


def load_recipe(name_or_path: str) -> Recipe:
    """Load a built-in recipe by name, or a TOML file by path."""
    known = builtin_recipes()
    if name_or_path in known:
        return known[name_or_path]
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" or path.exists():
        try:
            return Recipe.from_toml(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            names = ", ".join(known)
            raise UsageError(f"recipe file {name_or_path!r} does not exist; built-in recipes: {names}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"recipe {name_or_path!r} cannot be read: {error}") from None
    raise unknown("recipe", name_or_path, known)


def builtin_recipes() -> dict[str, Recipe]:
    folder = resources.files("paceline") / "recipes"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".toml")), key=lambda e: e.name)
    recipes = [Recipe.from_toml(entry.read_text(encoding="utf-8"), entry.name) for entry in files]
    return {recipe.name: recipe for recipe in recipes}


def parse_set(assignments: list[str]) -> Changes:
    """Parse `key=value` words into changes of a recipe. A value that is not valid TOML is a string."""
    changes: Changes = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r} is not key=value")
        known = dict(recipe_keys())
        if key not in known:
            raise unknown("recipe key", key, known)
        changes[key] = read_toml_value(text, f"--set {key}")
    return changes
