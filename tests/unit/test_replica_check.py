"""A replica that silently becomes different is found, at the right step and on the right worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import build, on_threads, on_threads_supported
from paceline.comm import CommError
from paceline.errors import RunError, UsageError
from paceline.recipe import Recipe
from paceline.strategies import StrategySpec, available_strategies
from paceline.study.entries import make_entry
from paceline.train.context import Context
from paceline.train.replica_check import CHUNK, EQUAL_AFTER_STEPS, BitHash, first_that_differs
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe


def flip_bit(tensor: Tensor, element: int = 0, bit: int = 0) -> None:
    words = tensor.detach().view(-1).view(torch.int64 if tensor.element_size() == 8 else torch.int32)
    words[element] ^= 1 << bit


def train(context: Context, strategy: str, every: int, flip: tuple[int, int] | None = None) -> str:
    """Train, and flip one bit after a step on a rank. Return the error, or the digest of the parameters."""
    recipe = toy_recipe(context.world_size, {"train.check_replicas": every, "strategy": strategy})
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), toy_data(), context, toy_model("plain"))

    def on_step(step: int) -> None:
        if flip == (context.rank, step):
            flip_bit(next(trainer.model.parameters()), element=5)

    try:
        trainer.run(on_step)
        trainer.strategy.finish()
    except RunError as error:
        return f"{type(error).__name__}: {error}"
    return parameter_digest(trainer.model)


@pytest.mark.parametrize(
    ("strategy", "every", "flip", "found_after"),
    [
        ("all-reduce", 1, (1, 2), 2),
        ("ring", 3, (2, 3), 5),  # every third step
        ("overlap", 2, (0, 1), 1),
        ("local-sgd:sync_every=2", 1, None, None),
    ],
)
def test_the_worker_and_the_step_are_named(
    strategy: str, every: int, flip: tuple[int, int] | None, found_after: int | None
) -> None:
    said = on_threads(3, train, strategy=strategy, every=every, flip=flip)
    if flip is None:
        assert len(set(said)) == 1
        return
    rank, _ = flip
    others = ", ".join(str(one) for one in range(3) if one != rank)
    sentence = (
        f"replicas differ after step {found_after}: the parameters of worker {rank} are not those of worker {others}"
    )
    assert all(sentence in one for one in said)
    assert [one.partition(":")[0] for one in said] == [
        RunError.__name__ if one == rank else CommError.__name__ for one in range(3)
    ]


def test_without_a_difference_the_check_changes_nothing() -> None:
    assert on_threads(2, train, strategy="all-reduce", every=1) == on_threads(2, train, strategy="all-reduce", every=0)


CHECKED = [
    name for name in available_strategies() if on_threads_supported(name) and build(name).guarantee in EQUAL_AFTER_STEPS
]


@pytest.mark.parametrize("strategy", [*CHECKED, "overlap+bf16", "all-reduce+int8", "local-sgd:outer_momentum=0.5"])
def test_no_strategy_with_equal_replicas_is_accused(strategy: str) -> None:
    said = on_threads(3, train, strategy=strategy, every=1)
    assert not [one for one in said if "differ" in one]


@pytest.mark.parametrize("strategy", ["none", "gossip", "parameter-server:mode=async"])
def test_replicas_that_differ_by_design_are_refused(strategy: str) -> None:
    recipe = Recipe().replace({"train.check_replicas": 5})
    with pytest.raises(UsageError, match=r"replicas differ by design \(guarantee "):
        make_entry(strategy, recipe)
    with pytest.raises(UsageError, match=r"train.check_replicas must be at least 0"):
        Recipe().replace({"train.check_replicas": -1})


def test_the_majority_is_right() -> None:
    assert first_that_differs([7, 7, 7]) == -1
    assert first_that_differs([8, 7, 7]) == 0
    assert first_that_differs([7, 7, 9, 9, 7]) == 2
    assert first_that_differs([7, 9]) == 1
    assert first_that_differs([7]) == -1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_bit_of_every_element_counts(dtype: Any) -> None:
    hash_of = BitHash()
    values = torch.randn(2 * CHUNK + 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = hash_of([values])
    bits = 8 * dtype.itemsize
    words = values.view({64: torch.int64, 32: torch.int32, 16: torch.int16}[bits])
    for element in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        for bit in range(bits):
            mask = 1 << bit if bit < bits - 1 else -(1 << bit)
            words[element] ^= mask
            assert hash_of([values]) != before
            words[element] ^= mask
    assert hash_of([values]) == before


def test_the_order_of_elements_and_tensors_counts() -> None:
    hash_of = BitHash()
    first, second = torch.arange(5.0), torch.arange(5.0) + 1
    assert hash_of([first, second]) != hash_of([second, first])
    assert hash_of([first]) != hash_of([first.flip(0)])
    assert hash_of([]) == 0
    assert BitHash()([first]) == hash_of([first])


def test_layouts_other_than_contiguous_are_read() -> None:
    weight = nn.Conv2d(3, 4, 3).weight.detach()
    hash_of = BitHash()
    assert hash_of([weight.to(memory_format=torch.channels_last)]) == hash_of([weight])
