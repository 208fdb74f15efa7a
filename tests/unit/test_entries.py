"""The rows of a study: strategies as written, and one worker as the reference."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.study.entries import ONE_WORKER, make_entries, make_entry

RECIPE = Recipe().replace({"workers": 4})


def test_a_row() -> None:
    entry = make_entry("ddp:bucket_mb=5+bf16", RECIPE)
    assert (entry.label, entry.spec, entry.name) == ("ddp:bucket_mb=5+bf16", "ddp:bucket_mb=5+bf16", "ddp")
    assert entry.options["bucket_mb"] == 5.0
    assert (entry.codec, entry.guarantee, entry.num_workers) == ("bf16", "LOSSY", 4)
    assert make_entry("none", RECIPE).guarantee == "NONE"
    assert make_entry("ring", RECIPE).guarantee == "EXACT"


def test_servers_are_beside_the_workers() -> None:
    entry = make_entry("parameter-server:servers=3", RECIPE)
    assert (entry.num_workers, entry.num_servers, entry.num_processes) == (4, 3, 7)
    ring = make_entry("ring", RECIPE)
    assert (ring.num_servers, ring.num_processes) == (0, 4)


def test_statistics_in_step_need_workers_in_step() -> None:
    recipe = RECIPE.replace({"train.batchnorm": "sync"})
    assert make_entry("parameter-server", recipe).guarantee == "EXACT"
    with pytest.raises(UsageError, match="is asynchronous, and batchnorm sync needs synchronous workers"):
        make_entry("parameter-server:mode=bounded", recipe)


def test_the_recipes_codec_is_where_a_row_names_none() -> None:
    recipe = RECIPE.replace({"codec": "fp16"})
    entry = make_entry("ring", recipe)
    assert (entry.label, entry.codec, entry.guarantee) == ("ring+fp16", "fp16", "LOSSY")
    with_options = make_entry("ring", RECIPE.replace({"codec": "topk:ratio=0.5"}))
    assert (with_options.label, with_options.codec) == ("ring+topk:ratio=0.5", "topk:ratio=0.5")
    assert make_entry(with_options.spec, RECIPE) == with_options
    plain = make_entry("ring+fp32", recipe)
    assert (plain.codec, plain.guarantee) == ("fp32", "EXACT")
    # What runs is what the row says, though its words leave fp32 out.
    assert plain.recipe(recipe).codec == "fp32"
    assert plain.recipe(recipe).strategy == "ring"


def test_one_worker_keeps_the_global_batch() -> None:
    entry = make_entry(ONE_WORKER, RECIPE)
    assert (entry.num_workers, entry.guarantee, entry.spec) == (1, "EXACT", "none")
    assert entry.recipe(RECIPE.replace({"train.batch_size": 64})).batch_size == 64
    by_worker = RECIPE.replace({"train.worker_batch_size": 16})
    alone = entry.recipe(by_worker)
    assert (alone.batch_size, alone.workers, alone.train.worker_batch_size) == (64, 1, None)
    rows = make_entry("ring", by_worker).recipe(by_worker)
    assert (rows.batch_size, rows.workers, rows.strategy, rows.strategies) == (64, 4, "ring", ())


def test_rows_are_named_once() -> None:
    labels = [
        entry.label for entry in make_entries((ONE_WORKER, "ring", "ring+fp16", "ddp", "ddp:bucket_mb=5"), RECIPE)
    ]
    assert labels == ["one-worker", "ring", "ring+fp16", "ddp", "ddp:bucket_mb=5"]
    with pytest.raises(UsageError, match="strategy 'ring' is named twice"):
        make_entries(("ring", "all-reduce", "ring+fp32"), RECIPE)


def test_a_comm_that_cannot_carry_a_strategy() -> None:
    sentence = "strategy 'ddp' cannot run: it needs a torch process group, which comm 'threads' does not have"
    with pytest.raises(UsageError, match=sentence):
        make_entry("ddp", RECIPE.replace({"comm": "threads"}))


def test_an_unknown_comm() -> None:
    with pytest.raises(UsageError, match="unknown comm 'troch'; did you mean 'torch'"):
        make_entry("ring", RECIPE.replace({"comm": "troch"}))
