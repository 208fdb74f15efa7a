"""The grid of a sweep, its remedies, and which mistakes stop it."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.study.sweep import make_points
from paceline.study.sweep_axes import parse_remedies, parse_vary

RECIPE = Recipe().replace({"strategy": "overlap", "workers": 2, "train.epochs": 20, "optimizer.momentum": 0.9})


def labels(*words: str, remedies: tuple[str, ...] = ()) -> list[str]:
    return [point.label for point in make_points(RECIPE, parse_vary(words), parse_remedies(remedies))]


def test_a_grid_has_every_combination_in_order() -> None:
    assert labels("batch-size=8,16", "strategy.bucket_mb=1,2") == [
        "batch_size 8, bucket_mb 1",
        "batch_size 8, bucket_mb 2",
        "batch_size 16, bucket_mb 1",
        "batch_size 16, bucket_mb 2",
    ]


def test_remedies_are_rows_beside_each_batch_size() -> None:
    points = make_points(RECIPE, parse_vary(["batch-size=8,512"]), parse_remedies(["linear", "lars:lr=5", "lamb"]))
    assert [point.remedy for point in points] == ["", "linear", "lars:lr=5", "lamb"] * 2
    plain, linear, lars, lamb = (point.recipe for point in points[4:])
    assert (plain.schedule.scale_lr, plain.optimizer.name) == ("none", "sgd")
    assert (linear.schedule.scale_lr, linear.schedule.warmup, linear.optimizer) == ("linear", 5.0, RECIPE.optimizer)
    assert (lars.optimizer.name, lars.optimizer.lr, lars.optimizer.momentum) == ("lars", 5.0, 0.9)
    assert (lamb.optimizer.name, lamb.optimizer.momentum, lamb.schedule.scale_lr) == ("lamb", 0.0, "sqrt")


def test_a_short_run_warms_up_for_half_of_its_epochs() -> None:
    short = RECIPE.replace({"train.epochs": 2})
    [_, linear] = make_points(short, parse_vary(["batch-size=8"]), parse_remedies(["linear"]))
    assert linear.recipe.schedule.warmup == 1.0


@pytest.mark.parametrize(
    ("words", "remedies", "sentence"),
    [
        ((), (), "a sweep needs a key to vary"),
        (("lr=0.1",), ("linear",), "remedies need a varied batch size"),
        (("batch-size=8",), ("lasr",), "did you mean 'lars'"),
        (("batch-size=8",), ("lars:rate=2",), "unknown option of a remedy 'rate'"),
        (("batch-size=8",), ("lars", "lars"), "remedy 'lars' is named twice"),
        (("batch-size=8,some",), (), "batch_size some: train.batch_size must be a whole number, not 'some'"),
        (("optimizer=sgd,adm",), (), "unknown optimizer.name 'adm'"),
        (("strategy.buckets=1",), (), "unknown option of strategy overlap 'buckets'"),
        (("cluster.bandwidth=1gbit",), (), "cluster.nodes is 0"),
    ],
)
def test_mistakes_stop_it(words: tuple[str, ...], remedies: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        labels(*words, remedies=remedies)


def test_what_is_impossible_together_is_a_point_with_a_reason() -> None:
    points = make_points(RECIPE, parse_vary(["batch-size=2,8", "workers=2,4"]))
    reasons = {point.label: point.reason for point in points}
    assert reasons.pop("batch_size 2, workers 4").startswith("batch size 2 is smaller than 4 workers")
    assert not any(reasons.values())


def test_folders_of_points_differ() -> None:
    points = make_points(RECIPE, parse_vary([f"data.dir={'x' * 120}1,{'x' * 120}2"]))
    names = [point.folder_name for point in points]
    assert len(set(names)) == 2
    assert all(len(name) <= 100 for name in names)
