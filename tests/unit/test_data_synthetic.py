"""Synthetic data: any shape, seeded, and learnable."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.data import Dataset, load_data
from paceline.data.synthetic import parse
from paceline.errors import UsageError
from paceline.recipe import DataConfig


def everything(dataset: Dataset) -> tuple[Tensor, Tensor]:
    return dataset.batch(torch.arange(len(dataset)), 0)


def test_shapes_and_default_sizes() -> None:
    data = load_data(DataConfig(name="synthetic:3x6x5x10"), seed=0)
    values, labels = everything(data.train)
    assert (data.shape, data.num_classes) == ((3, 6, 5), 10)
    assert values.shape == (2000, 3, 6, 5)
    assert values.dtype is torch.float32
    assert labels.dtype is torch.int64
    assert labels.bincount().tolist() == [200] * 10
    assert len(data.test) == 500


def test_the_classes_can_be_learned() -> None:
    data = load_data(DataConfig(name="synthetic:8x4"), seed=0)
    values, labels = everything(data.train)
    means = torch.stack([values[labels == label].mean(0) for label in range(4)])
    test_values, test_labels = everything(data.test)
    accuracy = (torch.cdist(test_values, means).argmin(1) == test_labels).float().mean()
    # By chance it would be 0.25; the noise keeps it from being perfect.
    assert 0.8 < accuracy < 1.0
    assert not torch.equal(values[:500], test_values)


def test_any_number_of_samples_and_the_test_set_stays() -> None:
    few = load_data(DataConfig(name="synthetic:8x4", train_samples=7), seed=0)
    many = load_data(DataConfig(name="synthetic:8x4", train_samples=5000, test_samples=500), seed=0)
    assert (len(few.train), len(many.train)) == (7, 5000)
    assert torch.equal(everything(few.test)[0], everything(many.test)[0])


def test_the_same_seed_gives_the_same_data_and_another_gives_other_data() -> None:
    first, again, other = (everything(load_data(DataConfig(name="synthetic:4x2"), seed=s).train)[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("text", ["", "x", "8", "3x", "x3", "3x-1x2", "0x4", "3x32x32 x10", "3X4", "axb", "1.5x2"])
def test_malformed_text_is_explained(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not synthetic:SHAPExCLASSES; write .* such as synthetic:3x32x32x10"):
        parse(f"synthetic:{text}")


def test_limits_are_explained() -> None:
    with pytest.raises(UsageError, match=r"must have 2 or more classes \(its last number\), not 1"):
        parse("synthetic:8x1")
    with pytest.raises(UsageError, match=r"2000 training and 500 test samples takes \d+ bytes .* use fewer"):
        load_data(DataConfig(name="synthetic:3x9999x9999x10"), seed=0)
