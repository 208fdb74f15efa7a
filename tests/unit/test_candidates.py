"""What tuning tries: combinations that can run and could pay, each once; and the words to use the winner."""

from __future__ import annotations

import ast
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli.options import recipe_options
from paceline.codecs import TensorSpec
from paceline.errors import UsageError
from paceline.recipe import Recipe, builtin_recipes, load_recipe
from paceline.results import changed
from paceline.results.study import Best
from paceline.study.advice import command_for, command_in, library_call
from paceline.study.candidates import Candidates, Space, bucket_sizes, make_candidates, sync_period

MODEL = [TensorSpec(1_000_000, 4, (1000, 1000)), TensorSpec(1000, 4, (1000,))]  # 4 MB


def candidates(workers: int = 4, recipe: dict[str, Any] | None = None, **space: Any) -> Candidates:
    changed = Recipe().replace({"workers": workers, "train.batch_size": 64, **(recipe or {})})
    return make_candidates(Space(**space), changed, MODEL)


def labels(found: Candidates) -> list[str]:
    return [entry.label for entry in found.entries]


def test_each_strategy_is_varied_in_what_it_has() -> None:
    found = candidates(
        strategies=("overlap", "local-sgd", "ring"), buckets_mb=(1.0, 2.0), codecs=("fp32", "bf16"), periods=(4, 8)
    )
    assert labels(found) == [
        "all-reduce",
        "overlap:bucket_mb=1",
        "overlap:bucket_mb=1+bf16",
        "overlap:bucket_mb=2",
        "overlap:bucket_mb=2+bf16",
        "local-sgd:sync_every=4",
        "local-sgd:sync_every=8",
        "ring",
        "ring+bf16",
    ]
    assert found.reference.label == "all-reduce"
    assert "local-sgd:sync_every=4+bf16" in found.left_out
    assert sync_period(found.entries) == 8


def test_what_a_user_wrote_stays_as_it_is() -> None:
    found = candidates(strategies=("overlap:bucket_mb=3+int8",), buckets_mb=(1.0,), codecs=("fp32",))
    assert labels(found) == ["all-reduce", "overlap:bucket_mb=3+int8"]


def test_a_recipes_codec_does_not_leak_into_candidates() -> None:
    found = candidates(recipe={"codec": "bf16"}, strategies=("ring",), codecs=("fp32", "fp16"))
    assert {entry.label: entry.codec for entry in found.entries} == {
        "all-reduce": "fp32",
        "ring": "fp32",
        "ring+fp16": "fp16",
    }


def test_the_reference_is_the_recipes_own_strategy_where_that_is_exact() -> None:
    assert candidates(recipe={"strategy": "ddp"}, strategies=("ring",)).reference.label == "ddp"
    assert candidates(recipe={"strategy": "stepwise"}, strategies=("ring",)).reference.label == "all-reduce"
    assert candidates(recipe={"strategy": "ddp+bf16"}, strategies=("ring",)).reference.label == "all-reduce"


def test_a_codec_that_sends_no_less_is_left_out() -> None:
    assert "all-reduce+int8" in labels(candidates(4, strategies=("all-reduce",), codecs=("int8",)))
    found = candidates(8, strategies=("all-reduce", "ring"), codecs=("fp32", "int8"))
    assert "all-reduce+int8" not in labels(found)
    assert "would send" in found.left_out["all-reduce+int8"]


def test_bucket_sizes_that_hold_the_whole_model_are_one() -> None:
    assert bucket_sizes((1.0, 4.0, 25.0, 100.0), 37.0) == [1.0, 4.0, 25.0, 100.0]
    assert bucket_sizes((1.0, 4.0, 25.0), 0.25) == [1.0]
    assert bucket_sizes((), 16.0) == [1.0, 4.0, 16.0]
    assert bucket_sizes((), 0.25) == [0.05, 0.062, 0.25]


@pytest.mark.parametrize(
    "space, words",
    [
        ({"strategies": ("one-worker",)}, "cannot be tuned"),
        ({"strategies": ("no-such",)}, "no-such"),
        ({"strategies": ("all-reduce",), "codecs": ("fp32",)}, "no candidates to compare"),
        ({"buckets_mb": (0.0,)}, "--buckets"),
        ({"periods": (0,)}, "--periods"),
        ({"codecs": ("gzip",)}, "gzip"),
        ({"codecs": ()}, "at least one"),
    ],
)
def test_wrong_spaces_are_refused(space: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        candidates(**space)


def typed(command: str) -> Recipe:
    """The recipe that the command line makes of a command."""
    seen: list[Recipe] = []

    @recipe_options(leave_out=("strategies",))
    def run(recipe: Any) -> None:
        seen.append(recipe)

    app = typer.Typer()
    app.command()(run)
    program, name, *words = shlex.split(command)
    assert (program, name) == ("paceline", "run")
    outcome = CliRunner().invoke(app, words)
    assert outcome.exit_code == 0, outcome.output
    return seen[0]


@pytest.mark.parametrize("name", list(builtin_recipes()))
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "overlap:bucket_mb=0.25+bf16"},
        {"workers": 2, "train.iterations": 40, "strategy": "local-sgd:sync_every=4"},
        {"data.augment": True, "optimizer.lr": 0.5, "train.batch_size": 32, "comm": "auto"},
        {"cluster.nodes": 4, "cluster.cpus": 0.5, "cluster.bandwidth": "1gbit", "cluster.links": ("0-2:100mbit",)},
        {"measure.inject": ("slow:rank=1,ms=20,phase=backward",)},
    ],
)
def test_the_command_makes_the_same_recipe(name: str, changes: dict[str, Any]) -> None:
    wanted = load_recipe(name).replace(changes)
    command = command_for(wanted)
    assert command is not None
    found = typed(command).to_dict()
    for values in (found, expected := wanted.to_dict()):
        for key in ("name", "description", "strategies"):
            values.pop(key, None)
    assert found == expected


def test_a_recipe_that_options_cannot_say_is_a_file() -> None:
    # All built-in recipes that are near say how many samples or how many epochs, and no option takes that back.
    odd = Recipe().replace({"optimizer.lr": 0.3, "train.precision": "bf16", "train.compile": True, "threads": 3})
    odd = odd.replace({"seed": 9, "timeout_s": 5.0, "train.warmup_iterations": 0, "data.image_size": 64})
    assert command_for(odd) is None
    best = Best(
        label="ring",
        strategy="ring",
        options={},
        codec="fp32",
        guarantee="EXACT",
        iteration_s=1.0,
        versus_reference=1.0,
        versus_reference_interval95=None,
        lost=0.0,
        lost_interval95=None,
        judged_by="accuracy",
        margin=0.5,
        command=None,
        library="",
    )
    assert command_in(best, "runs/a b") == "paceline run 'runs/a b/best.toml'"
    assert command_in(changed(best, command="paceline run x"), "runs/a") == "paceline run x"


def test_the_library_call_is_python() -> None:
    init, wrap = ast.parse(library_call("overlap:bucket_mb=4+bf16", "shm")).body
    assert ast.unparse(init) == "paceline.init(comm='shm')"
    call = "paceline.parallel(model, optimizer, strategy='overlap:bucket_mb=4+bf16')"
    assert ast.unparse(wrap).endswith(call)
