"""What a step's memory is made of, watched on tiny batches, and how lines over the batch come of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.comm.threads import ThreadsComm
from paceline.recipe import OptimizerConfig, Recipe
from paceline.train.context import Context
from paceline.train.footprint import Allocations, bytes_at, footprint_job, highest, lines_of


def test_memory_counts_while_it_lives() -> None:
    with Allocations() as allocations:
        first = torch.ones(1000)
        second = first + first
        del first
        third = second * 2
    assert allocations.timeline == [4000, 8000, 8000]
    assert third.sum() == 4000


def test_what_was_there_before_and_views_are_not_counted() -> None:
    before = torch.ones(1000)
    with Allocations() as allocations:
        before.add_(1)
        before.view(10, 100)
    assert allocations.timeline == [0, 0]


def test_what_backward_needs_stays_until_backward() -> None:
    layer, inputs = nn.Linear(8, 8, bias=False), torch.ones(100, 8)
    with Allocations() as allocations:
        loss = torch.tanh(layer(inputs)).sum()
        held = allocations.timeline[-1]
        loss.backward()
    assert held >= 100 * 8 * 4  # tanh's result, which its gradient is made of
    assert max(allocations.timeline) >= held + 100 * 8 * 4  # and the gradient of what it came from


def test_operations_of_two_batches_make_lines() -> None:
    lines = lines_of([100, 40], [100, 60])
    assert lines == [(100.0, 0.0), (20.0, 10.0)]
    assert bytes_at(lines, 4) == 100
    assert bytes_at(lines, 100) == 1020
    assert lines_of([10, 30], [10, 20, 50]) == [(10.0, 10.0)]  # other operations: through the peaks


def test_only_lines_that_are_highest_somewhere_are_kept() -> None:
    lines = [(100.0, 0.0), (20.0, 10.0), (10.0, 5.0), (90.0, 0.0)]
    kept = highest(lines)
    assert kept == [(100.0, 0.0), (20.0, 10.0)]
    for samples in (0, 1, 7, 9, 1000):
        assert bytes_at(kept, samples) == bytes_at(lines, samples)


@pytest.mark.parametrize("batchnorm", ["local", "sync"])
def test_a_model_is_measured_without_being_told_of(batchnorm: str) -> None:
    changes = {"train.batchnorm": batchnorm, "model.name": "resnet18", "data.name": "synthetic:3x8x8x10"}
    recipe = Recipe().replace({**changes, "data.train_samples": 8, "data.test_samples": 4, "workers": 1})
    optimizers = [OptimizerConfig(name=name) for name in ("sgd", "adam")]
    found = footprint_job(Context(ThreadsComm.world(1)[0]), recipe, optimizers)
    numbers = sum(numel for numel, _ in found["tensors"])
    assert numbers == 11_173_962
    assert found["parameter_bytes"] > 4 * numbers  # BatchNorm's statistics too
    assert found["state_bytes"][0] == 0
    assert found["state_bytes"][1] == pytest.approx(8 * numbers, rel=0.01)
    assert found["batch_line"][1] == 3 * 8 * 8 * 4 + 8
    few, many = (bytes_at(found["step_lines"], samples) for samples in (2, 1000))
    assert few >= 4 * numbers  # every gradient
    assert many > 1000 * 64 * 8 * 8 * 4 * 10  # the first stage alone keeps ten maps of 64 channels
    assert bytes_at(found["judge_lines"], 1000) < many / 2  # nothing is kept for a backward
