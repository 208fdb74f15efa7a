"""Recipes: checks at construction, changes by dotted key, lossless TOML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.recipe import (
    DEFAULT_RECIPE,
    MeasureConfig,
    OptimizerConfig,
    Recipe,
    TrainConfig,
    builtin_recipes,
    key_type,
    load_recipe,
    parse_set,
    recipe_keys,
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"workers": 0}, "workers must be at least 1, not 0"),
        ({"workers": 2.0}, "workers must be a whole number, not 2.0"),
        ({"workers": True}, "workers must be a whole number, not True"),
        ({"optimizer.lr": float("nan")}, "optimizer.lr must be a finite number, not nan"),
        ({"optimizer.lr": "fast"}, "optimizer.lr must be a number, not 'fast'"),
        ({"optimizer.name": "sgdd"}, "unknown optimizer.name 'sgdd'; did you mean 'sgd'?"),
        ({"train.batchnorm": "synch"}, "unknown train.batchnorm 'synch'; did you mean 'sync'?"),
        ({"data.download": "yes"}, "data.download must be true or false, not 'yes'"),
        ({"name": 3}, "name must be a string, not 3"),
        ({"strategies": [1]}, "strategies must be a list of strings, not [1]"),
        ({"train.batchsize": 3}, "unknown recipe key 'train.batchsize'; did you mean 'train.batch_size'?"),
        ({"workers": 4, "train.batch_size": 3}, "batch size 3 is smaller than 4 workers"),
        (
            {"workers": 4, "train.batch_size": 10, "train.worker_batch_size": 3},
            "batch size 10 conflicts with worker batch size 3 x 4 workers = 12; give one of the two",
        ),
        ({"optimizer.nesterov": True}, "nesterov needs optimizer sgd with a momentum above 0"),
        (
            {"measure.target_accuracy": 90.0},
            "--target-accuracy (measure.target_accuracy) must be at most 1, not 90: it is a fraction, 0.9 for 90 %",
        ),
        ({"train.iterations": 0}, "train.iterations must be at least 1, not 0"),
    ],
)
def test_mistakes(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        Recipe().replace(changes)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("workers = ", "recipe is not valid TOML"),
        ("wrokers = 2", "unknown key in recipe 'wrokers'; did you mean 'workers'?"),
        ("[train]\nepoch = 2", "unknown key in recipe 'train.epoch'; did you mean 'train.epochs'?"),
        ("train = 3", "recipe: train is a table of keys, not 3"),
    ],
)
def test_mistakes_in_a_file(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        Recipe.from_toml(text)
    assert sentence in str(caught.value)


def test_values_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().workers = 3  # type: ignore[misc]


def test_batch_sizes_of_all_and_of_one_worker() -> None:
    assert Recipe().batch_size == 100
    recipe = Recipe().replace({"workers": 4, "train.worker_batch_size": 8})
    assert recipe.batch_size == 32
    # Changing one name of a quantity drops the other.
    assert recipe.replace({"train.batch_size": 40}).batch_size == 40
    assert recipe.replace({"workers": 2}).batch_size == 16
    both = recipe.replace({"train.batch_size": 32, "train.worker_batch_size": 8})
    assert both.batch_size == 32


@pytest.mark.parametrize(
    ("epochs", "iterations", "expected"), [(None, None, 3), (2, None, 6), (None, 50, 50), (2, 4, 4), (2, 50, 6)]
)
def test_how_long_a_run_is(epochs: int | None, iterations: int | None, expected: int) -> None:
    train = TrainConfig(batch_size=7, epochs=epochs, iterations=iterations)
    assert Recipe(train=train).num_steps(17) == expected


def test_epochs_and_iterations_replace_each_other() -> None:
    recipe = Recipe().replace({"train.epochs": 3})
    assert recipe.replace({"train.iterations": 5}).train.epochs is None
    both = recipe.replace({"train.epochs": 3, "train.iterations": 5})
    assert (both.train.epochs, both.train.iterations) == (3, 5)
    assert both.replace({"train.iterations": None}).train.epochs == 3


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(
    name=TEXT,
    description=TEXT,
    lr=st.floats(0, allow_nan=False, allow_infinity=False),
    seed=st.integers(0, 2**62),
    strategies=st.lists(st.from_regex(r"[a-z+:=\"\\.]{1,8}", fullmatch=True), max_size=3),
    samples=st.none() | st.integers(1, 10),
    augment=st.booleans(),
)
def test_toml_survives_a_round_trip(
    name: str, description: str, lr: float, seed: int, strategies: list[str], samples: int | None, augment: bool
) -> None:
    changes: dict[str, Any] = {"name": name, "description": description, "optimizer.lr": lr, "seed": seed}
    changes |= {"strategies": strategies, "data.train_samples": samples, "data.augment": augment}
    recipe = Recipe().replace(changes)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_numbers_without_a_point_are_numbers() -> None:
    assert OptimizerConfig(lr=1).lr == 1.0
    assert isinstance(OptimizerConfig(lr=1).lr, float)


def test_strategies_from_words() -> None:
    expected = ("ring", "ddp:bucket_mb=5")
    assert Recipe().replace({"strategies": " ring, ddp:bucket_mb=5,"}).strategies == expected
    assert Recipe().replace({"strategies": list(expected)}).strategies == expected


def test_set_reads_values_as_toml_does() -> None:
    words = ["optimizer.lr=0.5", "workers=3", "name=hello world", 'model.name="vgg11"', "data.augment=true"]
    words += ["strategies=['ring', 'ddp']", "train.loss=mine.py:loss", "description=a=b"]
    assert parse_set(words) == {
        "optimizer.lr": 0.5,
        "workers": 3,
        "name": "hello world",
        "model.name": "vgg11",
        "data.augment": True,
        "strategies": ["ring", "ddp"],
        "train.loss": "mine.py:loss",
        "description": "a=b",
    }
    with pytest.raises(UsageError, match="--set 'workers' is not key=value"):
        parse_set(["workers"])
    with pytest.raises(UsageError, match="unknown recipe key 'worker'; did you mean 'workers'"):
        parse_set(["worker=2"])


def test_every_key_has_words_and_a_type() -> None:
    keys = dict(recipe_keys())
    assert {"workers", "train.batch_size", "schedule.warmup"} <= set(keys)
    flags = [item.metadata["flag"] for item in keys.values() if item.metadata["flag"]]
    assert len(flags) == len(set(flags))
    for key, item in keys.items():
        assert item.metadata["help"], key
        assert key_type(key) is not None


def test_built_in_recipes() -> None:
    known = builtin_recipes()
    assert DEFAULT_RECIPE in known
    for name, recipe in known.items():
        assert load_recipe(name) == recipe
        assert recipe.description
        assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_recipes_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("workers = 2\n")
    assert load_recipe(str(file)).workers == 2
    with pytest.raises(UsageError, match=r"recipe file '.*gone\.toml' does not exist; built-in recipes: lenet5-mnist"):
        load_recipe(str(tmp_path / "gone.toml"))
    with pytest.raises(UsageError, match="unknown recipe 'lenet5-mnits'; did you mean 'lenet5-mnist'"):
        load_recipe("lenet5-mnits")
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        load_recipe(str(file))
    with pytest.raises(UsageError, match="cannot be read"):
        load_recipe(str(tmp_path))


def test_what_is_measured_is_part_of_a_recipe() -> None:
    assert Recipe().measure == MeasureConfig(spans=True, sample_hz=5.0, profile="", inject=(), target_accuracy=None)
    recipe = Recipe.from_toml('[measure]\nspans = false\ninject = ["slow:rank=2,ms=200", "kill:rank=3,step=50"]\n')
    assert recipe.measure.inject == ("slow:rank=2,ms=200", "kill:rank=3,step=50")
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def test_an_injection_on_the_command_line_keeps_its_commas() -> None:
    changes = parse_set(["measure.inject=slow:rank=2,ms=200,phase=backward"])
    assert Recipe().replace(changes).measure.inject == ("slow:rank=2,ms=200,phase=backward",)


@pytest.mark.parametrize("accuracy", [-0.1, 1.5])
def test_a_target_is_a_fraction(accuracy: float) -> None:
    with pytest.raises(UsageError, match=r"measure\.target_accuracy\)? must be at (least|most)"):
        MeasureConfig(target_accuracy=accuracy)
