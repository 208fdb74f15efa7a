"""The studies as functions: recipes by name, and models and data that are objects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import paceline
from paceline.data.user_data import split_train_and_test
from paceline.errors import UsageError
from paceline.results import to_json
from toys import CLASSES, Plain, toy_data

SHORT: dict[str, Any] = {"workers": 2, "train__iterations": 2, "train__batch_size": 6}


def test_a_recipe_by_name(tmp_path: Path) -> None:
    study = paceline.compare("lenet5-mnist", strategies=["ring"], out=tmp_path, **SHORT)
    assert study["folder"] == str(study.folder)
    assert study["results"] == [to_json(row) for row in study.study.results]
    assert set(study) == {*to_json(study.study), "folder"}
    assert [row["strategy"] for row in study.rows] == ["ring"]


def test_objects(tmp_path: Path) -> None:
    # In float64 from the start, so that a copy of these very weights is what is trained.
    torch.manual_seed(5)
    model, data = Plain().double(), toy_data(samples=30).train
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pair = (data.inputs, data.targets)
    study = paceline.compare(
        model, pair, strategies=["one-worker", "ring"], loss=F.cross_entropy, out=tmp_path, **SHORT
    )
    one, two = study.rows
    assert (one["workers"], two["workers"]) == (1, 2)
    assert study["name"] == "Plain-tuple"
    # The same global batches from the same weights, in float64.
    assert two["test_loss"] == pytest.approx(one["test_loss"], rel=1e-9)
    assert two["sent_bytes"] > 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    text, page = repr(study), study._repr_html_()
    assert text.splitlines()[0].startswith("Strategy")
    assert "one-worker" in text
    assert "ring" in text
    assert str(study.folder) in text
    assert page.count("<tr>") == 3


def test_objects_reach_servers_too(tmp_path: Path) -> None:
    data = toy_data(samples=30).train
    study = paceline.compare(
        Plain().double(), (data.inputs, data.targets), strategies=["parameter-server", "ring"], out=tmp_path, **SHORT
    )
    assert [(row["strategy"], row["servers"]) for row in study["results"]] == [("parameter-server", 1), ("ring", 0)]
    first, second = study.rows
    assert first["test_loss"] == pytest.approx(second["test_loss"], rel=1e-9)


def test_what_workers_could_not_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = type("Cell", (Plain,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Cell", cell, raising=False)
    data = toy_data().train
    pair = (data.inputs.float(), data.targets)
    with pytest.raises(UsageError, match="worker processes cannot import 'Cell', which is defined in the main program"):
        paceline.compare(cell(), pair, strategies=["ring"], out=tmp_path, **SHORT)
    with pytest.raises(UsageError, match="these objects cannot be sent to worker processes"):
        paceline.compare(lambda: Plain(), pair, strategies=["ring"], out=tmp_path, **SHORT)
    assert list(tmp_path.iterdir()) == []


def test_what_makes_no_comparison() -> None:
    with pytest.raises(UsageError, match=r"compare\(\) got a Plain but no data"):
        paceline.compare(Plain())
    with pytest.raises(UsageError, match="a recipe has its own data"):
        paceline.compare(paceline.load_recipe("lenet5-mnist"), "mnist-mini")
    with pytest.raises(UsageError, match="not a int"):
        paceline.compare(3, "mnist-mini")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no_such_model"):
        paceline.compare("no_such_model", "mnist-mini", strategies=["ring"])


def test_a_tenth_is_kept_for_the_test() -> None:
    inputs, targets = torch.arange(40.0)[:, None], torch.arange(40) % CLASSES
    for given in ((inputs, targets), TensorDataset(inputs, targets)):
        train, test = split_train_and_test(given)
        sets = [
            part[0] if isinstance(part, tuple) else torch.stack([part[i][0] for i in range(len(part))])
            for part in (train, test)
        ]
        assert [len(part) for part in sets] == [36, 4]
        assert sorted(torch.cat(sets).flatten().tolist()) == list(range(40))
    pair = (TensorDataset(inputs), TensorDataset(inputs))
    assert split_train_and_test(pair) is pair
    assert split_train_and_test(toy_data()).num_classes == CLASSES
    with pytest.raises(UsageError, match="data of 1 samples cannot be divided"):
        split_train_and_test((inputs[:1], targets[:1]))


def test_a_model_is_copied() -> None:
    from paceline.train.user_objects import as_factory

    model = nn.Linear(2, 2)
    built = as_factory(model)()
    assert built is not model
    assert torch.equal(built.weight, model.weight)


@pytest.mark.slow
def test_sweep_is_a_table_with_what_was_varied(tmp_path: Path) -> None:
    found = paceline.sweep("lenet5-mnist", vary={"batch_size": [20, 50], "lr": [0.001]}, out=tmp_path, **SHORT)
    assert [(row["train.batch_size"], row["optimizer.lr"]) for row in found.rows] == [(20, 0.001), (50, 0.001)]
    assert "batch_size 50, lr 0.001" in repr(found)
    assert found["failures"] == []
    assert (Path(found["folder"]) / "study.json").exists()


@pytest.mark.slow
def test_scale_is_a_table_with_a_row_per_point(tmp_path: Path) -> None:
    found = paceline.scale("lenet5-mnist", workers=[1, 2], strategies="ring", out=tmp_path, train__iterations=4)
    assert [(row["strategy"], row["workers"], row["mode"]) for row in found.rows] == [
        ("one-worker", 1, "strong"),
        ("ring", 2, "strong"),
    ]
    assert found["results"][1]["scaling"]["speedup"] > 0
    assert found["failed"] == []


@pytest.mark.slow
def test_tune_ends_in_a_strategy_and_how_to_use_it(tmp_path: Path) -> None:
    found = paceline.tune(
        "lenet5-mnist", strategies=["ring", "all-reduce"], codecs=["fp32"], repeats=1, out=tmp_path, **SHORT
    )
    # The recipe's own strategy is the reference, and may win as well: which one does is a matter of two steps' time.
    assert {row["label"] for row in found["rungs"][0]["rows"]} == {"ring", "all-reduce", found["reference"]}
    assert found["best"]["label"] in {"ring", "all-reduce", found["reference"]}
    assert found["best"]["command"].startswith("paceline run")
    with pytest.raises(UsageError, match="tuning needs --workers 2"):
        paceline.tune("lenet5-mnist", workers=1, out=tmp_path)
