"""Keys and values of a sweep: what users write, and the recipes that it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.study.sweep_axes import (
    apply_choice,
    choice_label,
    is_same_work,
    make_axes,
    parse_vary,
    resolve_key,
)

RECIPE = Recipe().replace({"strategy": "overlap", "workers": 2, "train.epochs": 1})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("batch-size", "train.batch_size"),
        ("batch_size", "train.batch_size"),
        ("train.batch_size", "train.batch_size"),
        ("--batch-size", "train.batch_size"),
        ("lr", "optimizer.lr"),
        ("optimizer", "optimizer.name"),
        ("optimizer.name", "optimizer.name"),
        ("workers", "workers"),
        ("timeout", "timeout_s"),
        ("augment", "data.augment"),
        ("cluster.bandwidth", "cluster.bandwidth"),
        ("strategy", "strategy"),
        ("strategy.bucket-mb", "strategy.bucket_mb"),
    ],
)
def test_a_key_has_the_names_of_its_option_and_its_own(name: str, key: str) -> None:
    assert resolve_key(name) == key


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("batch-size=32,128", (32, 128)),
        ("lr=0.1,1e-3", (0.1, 0.001)),
        ("augment=true,false", (True, False)),
        ("micro-batch-size=none,16", (None, 16)),
        ("strategy=ring,overlap:bucket_mb=1+bf16", ("ring", "overlap:bucket_mb=1+bf16")),
        ("strategy.bucket_mb=1,2.5", (1, 2.5)),
        ("cluster.bandwidth=none,100mbit", ("", "100mbit")),
        ("cluster.slow=none;1:0.5", ((), ("1:0.5",))),
        ("inject=none;slow:rank=1,ms=5", ((), ("slow:rank=1,ms=5",))),
    ],
)
def test_values_are_what_the_key_takes(word: str, values: tuple[Any, ...]) -> None:
    [axis] = parse_vary([word])
    assert axis.values == values
    assert make_axes({axis.key: axis.values_of().values}) == [axis]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["batch-size"], "is not KEY=V1,V2"),
        (["batch-size="], "is not KEY=V1,V2"),
        (["batchsize=1,2"], "did you mean 'batch_size'"),
        (["batch-size=1,2", "train.batch_size=3"], "names train.batch_size twice"),
        (["batch-size=32,32"], "has '32' twice"),
        (["strategies=ring,ddp"], "a sweep runs one strategy per point; vary strategy"),
        (["name=a,b"], "it only names a run"),
    ],
)
def test_mistakes_are_named(words: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_vary(words)


def test_a_choice_changes_the_recipe() -> None:
    made = apply_choice(RECIPE, {"train.batch_size": 64, "optimizer.lr": 0.5, "measure.inject": ("slow:rank=1,ms=5",)})
    assert (made.batch_size, made.optimizer.lr, made.measure.inject) == (64, 0.5, ("slow:rank=1,ms=5",))
    assert apply_choice(RECIPE.replace({"train.worker_batch_size": 8}), {"train.batch_size": 64}).batch_size == 64


@pytest.mark.parametrize(
    ("strategy", "choice", "expected"),
    [
        ("overlap", {"strategy.bucket_mb": 5}, "overlap:bucket_mb=5"),
        ("overlap:bucket_mb=1:accumulate=2", {"strategy.bucket_mb": 5}, "overlap:accumulate=2:bucket_mb=5"),
        ("overlap+bf16", {"strategy.bucket_mb": 5}, "overlap:bucket_mb=5+bf16"),
        ("overlap", {"strategy": "ddp+fp16", "strategy.bucket_mb": 2.5}, "ddp:bucket_mb=2.5+fp16"),
        ("overlap", {"strategy": "ddp", "strategy.static_graph": True}, "ddp:static_graph=true"),
        ("overlap", {"strategy.accumulate": 4, "codec": "bf16"}, "overlap:accumulate=4+bf16"),
    ],
)
def test_options_go_into_the_strategy(strategy: str, choice: dict[str, Any], expected: str) -> None:
    assert apply_choice(RECIPE.replace({"strategy": strategy}), choice).strategy == expected


def test_labels_say_what_tells_points_apart() -> None:
    assert choice_label({"train.batch_size": 32}) == "batch_size 32"
    assert choice_label({"strategy": "ring", "optimizer.name": "sgd"}) == "ring, optimizer sgd"
    assert choice_label({"cluster.slow": (), "cluster.latency": ""}) == "slow none, latency none"
    assert choice_label({"optimizer.lr": 1, "schedule.name": "step", "strategy.outer_lr": 2}).startswith(
        "lr 1, schedule"
    )


def test_times_are_compared_for_the_same_work_alone() -> None:
    assert is_same_work([apply_choice(RECIPE, {"strategy.bucket_mb": value}) for value in (1, 2)])
    assert not is_same_work([apply_choice(RECIPE, {"train.batch_size": value}) for value in (32, 64)])
    assert not is_same_work([apply_choice(RECIPE, {"model.name": value}) for value in ("lenet5", "vgg11")])
    weak = RECIPE.replace({"train.worker_batch_size": 8})
    assert not is_same_work([apply_choice(weak, {"workers": value}) for value in (1, 2)])


def test_values_may_be_given_as_they_are() -> None:
    words = ["batch-size=8,16", "strategy.bucket_mb=1,2.5", "cluster.slow=none;1:0.5"]
    given = {"batch_size": [8, 16], "strategy.bucket_mb": [1, 2.5], "cluster.slow": [[], ["1:0.5"]]}
    assert make_axes(given) == parse_vary(words)
