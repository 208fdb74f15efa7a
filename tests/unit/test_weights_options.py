"""Strategies that average weights refuse invalid options before anything starts."""

from __future__ import annotations

import pytest
import torch

from helpers import build
from paceline.errors import UsageError


@pytest.mark.parametrize(
    ("text", "num_workers", "sentence"),
    [
        ("stepwise:exact_every=6", 4, "shares the factor 2 with 4 workers"),
        ("stepwise:exact_every=6", 4, "use exact_every=7"),
        ("stepwise:exact_every=6", 6, "use exact_every=7"),
        ("stepwise:exact_every=8", 6, "use exact_every=7"),
        ("stepwise:exact_every=2", 2, "use exact_every=3"),
        ("stepwise+bf16", 2, "sends weights, which codec bf16"),
        ("gossip+fp16", 2, "sends weights, which codec fp16"),
        ("local-sgd+fp16", 2, "sends weights, which codec fp16"),
    ],
)
def test_unsupported_combinations_are_refused(text: str, num_workers: int, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(text).check(num_workers, torch.optim.SGD)


def test_supported_combinations_are_accepted() -> None:
    for text, num_workers in (("stepwise:exact_every=7", 4), ("stepwise:exact_every=6", 1), ("stepwise", 4)):
        strategy = build(text)
        assert strategy.check(num_workers, torch.optim.SGD) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stepwise:form=half", "option form of strategy stepwise must be chunks or whole, not 'half'"),
        ("stepwise:correct=now", "must be none or delayed, not 'now'"),
        ("stepwise:exact_every=-1", "must be 0 .never. or more, not -1"),
        ("local-sgd:sync_every=0", "sync_every of strategy local-sgd must be at least 1, not 0"),
        ("local-sgd:outer_lr=nan", "outer_lr of strategy local-sgd must be above 0"),
        ("local-sgd:outer_momentum=1", "outer_momentum of strategy local-sgd must be from 0 to below 1"),
    ],
)
def test_mistakes_in_options(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(text)
