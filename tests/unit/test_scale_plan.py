"""What a scaling study is going to measure: points, batches, refusals, and mistakes that are found first."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.study.entries import ONE_WORKER
from paceline.study.scale import Scale, parse_mode, parse_workers

BASE = {"data.train_samples": 100, "train.batch_size": 100, "train.iterations": 4}


def plan_of(strategies: str, workers: str = "1,2,4", mode: str = "strong", **changes: object) -> Scale:
    numbers = parse_workers(workers)
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    base = Recipe().replace({**BASE, "workers": max(numbers), "strategies": strategies})
    recipe = base.replace(keys)
    return Scale.prepare(recipe, numbers, parse_mode(mode))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1,2,3,4", (1, 2, 3, 4)), ("4, 2", (2, 4)), ("1-4", (1, 2, 3, 4)), ("2,2,1-3", (1, 2, 3)), ("8", (8,))],
)
def test_numbers_of_workers(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_workers(text) == numbers


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a list of numbers of workers such as 1,2,3,4"),
        ("1,,2", "is not a list"),
        ("0,1", "is not a list"),
        ("-2", "is not a list"),
        ("4-2", "is not a list"),
        ("two", "is not a list"),
        ("1.5", "is not a list"),
        ("1-999999", "names 999999 numbers"),
        ("1", "shows no scaling"),
        ("1,1", "shows no scaling"),
    ],
)
def test_numbers_that_are_none(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_workers(text)


def test_modes() -> None:
    assert parse_mode("both") == ("strong", "weak")
    assert parse_mode("weak") == ("weak",)
    with pytest.raises(UsageError, match="did you mean 'strong'"):
        parse_mode("stron")


def test_strong_scaling_keeps_the_global_batch() -> None:
    plan = plan_of("ring,ddp")
    found = {(p.entry.label, p.entry.num_workers): (p.recipe.workers, p.recipe.batch_size) for p in plan.points}
    assert found == {
        (ONE_WORKER, 1): (1, 100),
        ("ring", 2): (2, 100),
        ("ring", 4): (4, 100),
        ("ddp", 2): (2, 100),
        ("ddp", 4): (4, 100),
    }
    assert plan.constant_batches == {"strong": {"batch_size": 100}}
    assert plan.workers == (2, 4)


def test_weak_scaling_keeps_the_workers_batch() -> None:
    plan = plan_of("ring", mode="weak")
    assert [(p.recipe.workers, p.recipe.batch_size) for p in plan.points] == [(1, 25), (2, 50), (4, 100)]
    assert plan.constant_batches == {"weak": {"worker_batch_size": 25}}
    own = plan_of("ring", mode="weak", train__worker_batch_size=10)
    assert [p.recipe.batch_size for p in own.points] == [10, 20, 40]
    odd = plan_of("ring", "1,3", mode="weak")
    assert [p.recipe.batch_size for p in odd.points] == [33, 66, 99][::2]


def test_what_both_modes_share_is_measured_once() -> None:
    plan = plan_of("ring", mode="both")
    assert len(plan.points) == 6  # one worker, two and four, in each mode
    assert [(job.work, len(job.points)) for job in plan.jobs] == [
        ((ONE_WORKER, 1, 100), 1),
        ((ONE_WORKER, 1, 25), 1),
        (("ring", 2, 100), 1),
        (("ring", 2, 50), 1),
        (("ring", 4, 100), 2),
    ]
    names = [job.cell.progress_entry.label for job in plan.jobs]
    assert names[0] == "one-worker, strong"
    assert names[-1] == "ring on 4, strong and weak"
    assert len(set(names)) == len({job.cell.folder_name for job in plan.jobs}) == 5


def test_one_worker_is_measured_whether_it_is_named_or_not() -> None:
    for workers, strategies in (("2,4", "ring"), ("1,2,4", "one-worker,ring")):
        plan = plan_of(strategies, workers)
        assert [p.entry.label for p in plan.points] == [ONE_WORKER, "ring", "ring"]


def test_who_cannot_run_with_a_number_is_refused_there_alone() -> None:
    plan = plan_of("stepwise:exact_every=3,ring", "1,2,3,4", mode="both")
    assert [(row.label, row.point) for row in plan.refused] == [
        ("stepwise:exact_every=3", {"workers": 3, "mode": "strong"}),
        ("stepwise:exact_every=3", {"workers": 3, "mode": "weak"}),
    ]
    assert "shares the factor 3 with 3 workers" in str(plan.refused[0].reason)
    measured = [p.entry.num_workers for p in plan.points if p.entry.name == "stepwise" and p.mode == "strong"]
    assert measured == [2, 4]


@pytest.mark.parametrize(
    ("strategies", "workers", "sentence"),
    [
        ("", "1,2", "has no strategies to scale"),
        ("one-worker", "1,2", "has no strategies to scale"),
        ("rign", "1,2", "did you mean 'ring'"),
        ("ring:chunk=1", "1,2", "ring"),
        ("ring,ring", "1,2", "named twice"),
        ("stepwise:exact_every=2", "1,2,4", "cannot run with 2, 4 workers: exact_every=2 shares the factor 2"),
        ("stepwise+bf16,ring", "1,2", "cannot run with 2 workers"),
    ],
)
def test_mistakes_are_found_first(strategies: str, workers: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan_of(strategies, workers)


def test_what_the_largest_point_cannot_do_is_found_first() -> None:
    with pytest.raises(UsageError, match="larger than the 100 training samples"):
        plan_of("ring", mode="weak", train__worker_batch_size=30)
    with pytest.raises(UsageError, match="smaller than 4 workers"):
        plan_of("ring", train__batch_size=3)


def test_every_worker_has_a_node_of_its_own() -> None:
    with pytest.raises(UsageError, match="--workers 4 is more than the 3 nodes of the cluster"):
        plan_of("ring", cluster__nodes=3)
    plan = plan_of("parameter-server,ring", cluster__nodes=4)
    assert [(row.point or {})["workers"] for row in plan.refused] == [4]
    assert (
        str(plan.refused[0].reason)
        == "4 workers and 1 server need 5 nodes, but the cluster has 4; use fewer workers, or --cluster nodes=5"
    )
    assert plan.num_processes == 4
    assert plan.points[-1].recipe.cluster.nodes == 4
    assert plan_of("parameter-server").num_processes == 5
