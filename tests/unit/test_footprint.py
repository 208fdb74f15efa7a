"""Recording a step's allocations on tiny batches, and extrapolating them to other batch sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.comm.threads import ThreadsComm
from paceline.recipe import OptimizerConfig, Recipe
from paceline.train.allocator import LARGEST_BLOCK
from paceline.train.context import Context
from paceline.train.footprint import Allocations, Peaks, fit_changes, footprint_job, replay


def test_memory_is_taken_and_freed_in_order() -> None:
    with Allocations() as allocations:
        first = torch.ones(1000)
        second = first + first
        del first
        third = second * 2
        events = list(allocations.events)
    assert events == [(0, 4000), (1, 4000), (0, None), (2, 4000)]
    assert third.sum() == 4000


def test_what_was_there_before_and_views_are_not_counted() -> None:
    before = torch.ones(1000)
    with Allocations() as allocations:
        before.add_(1)
        before.view(10, 100)
    assert allocations.events == []


def test_what_backward_needs_stays_until_backward() -> None:
    layer, inputs = nn.Linear(8, 8, bias=False), torch.ones(100, 8)
    with Allocations() as allocations:
        loss = torch.tanh(layer(inputs)).sum()
        before = list(allocations.events)
        loss.backward()
        events = list(allocations.events)
    kept = sum(nbytes or 0 for piece, nbytes in before if (piece, None) not in before)
    assert kept >= 100 * 8 * 4  # tanh's result, which its gradient is made of
    changes = fit_changes(events, events)
    assert replay(changes, 1).heap_bytes >= kept + 100 * 8 * 4  # and the gradient of what it came from


def test_two_batches_predict_another() -> None:
    small = [(0, 100), (1, 40), (1, None), (2, 20)]
    large = [(0, 100), (1, 60), (1, None), (2, 40)]
    changes = fit_changes(small, large)
    assert changes == [(0, (100.0, 0.0)), (1, (20.0, 10.0)), (1, None), (2, (0.0, 10.0))]
    assert replay(changes, 4) == Peaks(160)
    assert replay(changes, 100) == Peaks(1120)
    assert replay(changes, 0) == Peaks(120)


def test_other_operations_grow_with_the_batch_altogether() -> None:
    assert fit_changes([(0, 10)], [(0, 10), (1, 30)]) == [(0, (0.0, 2.5)), (1, (0.0, 7.5))]


def test_large_pieces_count_apart() -> None:
    changes = [(0, (0.0, 1.0)), (1, (1000.0, 0.0)), (0, None), (2, (0.0, 2.0))]
    assert replay(changes, LARGEST_BLOCK) == Peaks(1000, 2 * LARGEST_BLOCK)
    assert replay(changes, LARGEST_BLOCK - 1) == Peaks(1000 + LARGEST_BLOCK - 1, 2 * (LARGEST_BLOCK - 1))
    assert Peaks(1, 5).maximum(Peaks(2, 3)) == Peaks(2, 5)


@pytest.mark.parametrize("batchnorm", ["local", "sync"])
def test_a_model_is_measured_without_knowledge_of_it(batchnorm: str) -> None:
    changes = {"train.batchnorm": batchnorm, "model.name": "resnet18", "data.name": "synthetic:3x8x8x10"}
    recipe = Recipe().replace({**changes, "data.train_samples": 8, "data.test_samples": 4, "workers": 1})
    optimizers = [OptimizerConfig(name=name) for name in ("sgd", "adam")]
    found = footprint_job(Context(ThreadsComm.world(1)[0]), recipe, optimizers)
    numbers = sum(numel for numel, _ in found.tensors)
    assert numbers == 11_173_962
    assert found.parameter_bytes > 4 * numbers  # BatchNorm's statistics too
    assert found.state_bytes[optimizers[0]] == 0
    assert found.state_bytes[optimizers[1]] == pytest.approx(8 * numbers, rel=0.01)
    assert found.batch_line[1] == 3 * 8 * 8 * 4 + 8
    few, many = (replay(found.step_changes, samples) for samples in (2, 400))
    assert few.heap_bytes >= 4 * numbers  # every gradient
    assert many.heap_bytes > 400 * 64 * 8 * 8 * 4 * 10  # the first stage alone saves ten maps of 64 channels
    assert replay(found.evaluation_changes, 400).heap_bytes < many.heap_bytes / 2  # nothing is kept for a backward
