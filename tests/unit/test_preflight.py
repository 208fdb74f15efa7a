"""Everything that can be known to be wrong before a worker starts, one sentence each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.study.compare import Compare
from paceline.study.preflight import ModelFacts, preflight

SMALL = {"data.name": "synthetic:1x28x28x10", "data.train_samples": 50, "data.test_samples": 10, "workers": 2}
SMALL |= {"train.batch_size": 20}

USER = """
import torch
from torch import nn

def data():
    x = torch.randn(12, 4)
    return (x, x.sum(1)), (x[:0], x[:0].sum(1))

def classes():
    return (torch.randn(12, 4), torch.arange(12) % 3), (torch.randn(3, 4), torch.arange(3))

def model():
    return nn.Linear(4, 1)

def classifier():
    return nn.Linear(4, 3)

def loss(output, target):
    return ((output.squeeze(1) - target) ** 2).mean()

def per_sample(output, target):
    return (output.squeeze(1) - target) ** 2
"""


@pytest.fixture
def user(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(USER)
    return str(file)


def test_what_is_learnt_on_the_way() -> None:
    recipe = Recipe().replace({**SMALL, "train.epochs": 2})
    assert preflight(recipe) == ModelFacts(
        num_parameters=61_706, num_train_samples=50, num_test_samples=10, steps_per_epoch=3, total_steps=6
    )
    assert preflight(recipe.replace({"train.precision": "fp64", "train.iterations": 4})).total_steps == 4


def test_more_servers_than_tensors() -> None:
    recipe = Recipe().replace({**SMALL, "strategies": ["ring", "parameter-server:servers=10"]})
    entries = Compare.prepare(recipe).entries  # lenet5: five layers, each with weights and biases
    assert [entry.num_servers for entry in entries] == [0, 10]
    with pytest.raises(UsageError, match=r"11 servers cannot share a model of 10 trained tensors.*at most servers=10"):
        Compare.prepare(recipe.replace({"strategies": ["ring", "parameter-server:servers=11"]}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"comm": "troch"}, "unknown comm 'troch'; did you mean 'torch'?"),
        (
            {"comm": "threads"},
            "comm 'threads' connects threads of one process, but workers are processes; "
            "use hierarchical or shm or torch",
        ),
        (
            {"train.batchnorm": "sync", "train.micro_batch_size": 2},
            "--batchnorm sync cannot be combined with micro-batches; remove --micro-batch-size",
        ),
        ({"train.loss": "crossentropy"}, "unknown loss 'crossentropy'; did you mean 'cross-entropy'?"),
        ({"data.name": "mnits"}, "unknown data 'mnits'; did you mean 'mnist'?"),
        ({"model.name": "lenet"}, "unknown model 'lenet'; did you mean 'lenet5'?"),
        (
            {"data.train_samples": 3, "workers": 4},
            "4 workers need at least 4 training samples, but there are 3; use fewer workers or more samples",
        ),
        (
            {"train.batch_size": 51},
            "batch size 51 is larger than the 50 training samples of synthetic:1x28x28x10; use at most 50, or more "
            "samples (--train-samples)",
        ),
        (
            {"data.name": "synthetic:1x8x8x10"},
            "model 'lenet5' takes images of at least 12 x 12 pixels, but this data has 8 x 8; "
            "use larger images or another model",
        ),
    ],
)
def test_sentences(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        preflight(Recipe().replace({**SMALL, **changes}))
    assert str(caught.value) == sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu() -> None:
    with pytest.raises(UsageError, match=r"--device cuda needs a GPU.*use --device cpu"):
        preflight(Recipe().replace({**SMALL, "device": "cuda"}))


def parts(user: str, **names: str) -> dict[str, Any]:
    return {
        "data.name": f"{user}:{names.get('data', 'classes')}",
        "model.name": f"{user}:{names.get('model', 'classifier')}",
        "train.loss": f"{user}:{names['loss']}" if "loss" in names else "cross-entropy",
        "train.batch_size": 6,
        "workers": 2,
    }


def test_the_users_own_parts(user: str) -> None:
    facts = preflight(Recipe().replace(parts(user)))
    assert (facts.num_parameters, facts.total_steps) == (15, 2)


def test_data_without_test_samples(user: str) -> None:
    with pytest.raises(UsageError, match="test"):
        preflight(Recipe().replace(parts(user, data="data", model="model", loss="loss")))


def test_parts_that_do_not_fit(user: str) -> None:
    with pytest.raises(UsageError) as caught:
        preflight(Recipe().replace({**parts(user), "model.name": "torch.nn:Bilinear"}))
    assert "Bilinear" in str(caught.value)
    changes = parts(user, loss="loss")  # three scores where the loss expects one
    with pytest.raises(UsageError, match=r"model '.*:classifier' with loss '.*:loss' fails on data '.*:classes'") as e:
        preflight(Recipe().replace(changes))
    assert "\n" not in str(e.value)


def test_a_loss_that_is_no_mean(user: str) -> None:
    with pytest.raises(UsageError, match="return a scalar, the mean over samples"):
        preflight(Recipe().replace(parts(user, model="model", loss="per_sample")))


def test_a_study_finds_mistakes_in_any_row() -> None:
    recipe = Recipe().replace({**SMALL, "strategies": ["ring", "all-redcue"]})
    with pytest.raises(UsageError, match="unknown strategy 'all-redcue'; did you mean 'all-reduce'"):
        Compare.prepare(recipe)
    with pytest.raises(UsageError, match="has no strategies to compare"):
        Compare.prepare(Recipe().replace(SMALL))
    study = Compare.prepare(Recipe().replace({**SMALL, "strategies": ["ring"]}))
    entries, facts = study.entries, study.facts
    assert [entry.label for entry in entries] == ["ring"]
    assert facts.steps_per_epoch == 3
