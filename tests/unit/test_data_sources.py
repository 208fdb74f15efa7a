"""Data sources by name: the list, what each loads, and errors for unknown names."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import paceline.data
from paceline.data import Data, data_sources, load_data
from paceline.errors import UsageError
from paceline.recipe import DataConfig


def load(name: str, **keys: object) -> Data:
    return load_data(dataclasses.replace(DataConfig(name=name), **keys), seed=1)  # type: ignore[arg-type]


def test_the_public_names_are_exactly_these() -> None:
    expected = {"load_data", "data_sources", "Dataset", "Data", "Batch", "ShardPlan", "epoch_generator", "make_plan"}
    assert set(paceline.data.__all__) == expected
    assert len(paceline.data.__all__) == len(expected)


def test_every_source_has_one_line_of_description() -> None:
    assert list(data_sources()) == [
        "mnist-mini",
        "mnist",
        "cifar10",
        "folder:PATH",
        "synthetic:CxHxWxCLASSES",
        "file.py:factory",
    ]
    assert all(text and "\n" not in text for text in data_sources().values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar-10", "unknown data 'cifar-10'; did you mean 'cifar10'?"),
        ("mnist:x", "unknown data 'mnist:x'; did you mean 'mnist'?"),
        ("zzzz", "unknown data 'zzzz'; known: cifar10, file.py:factory, folder:PATH, mnist"),
        ("", "unknown data ''; known: "),
    ],
)
def test_an_unknown_name_is_told_the_known_ones(name: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        load(name)
    assert str(raised.value).startswith(message)


def test_limits_take_the_first_samples() -> None:
    whole, limited = load("mnist-mini"), load("mnist-mini", train_samples=100, test_samples=20)
    assert (len(whole.train), len(whole.test)) == (2000, 500)
    assert (len(limited.train), len(limited.test)) == (100, 20)
    for split, count in (("train", 100), ("test", 20)):
        indices = torch.arange(count)
        expected, found = (getattr(data, split).batch(indices, 0) for data in (whole, limited))
        assert torch.equal(expected[0], found[0])
        assert torch.equal(expected[1], found[1])
    assert (limited.shape, limited.num_classes) == ((1, 28, 28), 10)


def test_a_limit_may_be_all_there_is_but_no_more() -> None:
    assert len(load("mnist-mini", test_samples=500).test) == 500
    with pytest.raises(UsageError, match=r"^data.train_samples is 2001, but 'mnist-mini' has 2000 train samples; ask"):
        load("mnist-mini", train_samples=2001)
    with pytest.raises(UsageError, match=r"^data.test_samples is 501, but 'mnist-mini' has 500 test samples; ask"):
        load("mnist-mini", test_samples=501)
