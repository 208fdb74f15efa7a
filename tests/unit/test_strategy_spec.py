"""Parsing of `NAME[:option=value...][+codec]` into a strategy."""

from __future__ import annotations

import pytest

from helpers import TESTS
from paceline.errors import UsageError
from paceline.strategies import StrategySpec, strategies

WRONG = f"{TESTS / 'wrong_strategies.py'}:WrongPrediction"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ring", StrategySpec("ring")),
        (" ring ", StrategySpec("ring")),
        ("ring+fp16", StrategySpec("ring", (), "fp16")),
        ("ddp:bucket_mb=5", StrategySpec("ddp", (("bucket_mb", "5"),))),
        (
            "ddp:bucket_mb=5:static_graph=true+bf16",
            StrategySpec("ddp", (("bucket_mb", "5"), ("static_graph", "true")), "bf16"),
        ),
        ("ddp:bucket_mb=", StrategySpec("ddp", (("bucket_mb", ""),))),
        ("mine.py:Class", StrategySpec("mine.py:Class")),
        ("a/mine.py:Class:x=1+bf16", StrategySpec("a/mine.py:Class", (("x", "1"),), "bf16")),
        ("package.module:Class", StrategySpec("package.module:Class")),
        ("ring+topk:ratio=0.05", StrategySpec("ring", (), "topk:ratio=0.05")),
        ("a+b/mine.py:Class:x=1", StrategySpec("a+b/mine.py:Class", (("x", "1"),))),
        ("a+b/mine.py:Class+int8:chunk=8", StrategySpec("a+b/mine.py:Class", (), "int8:chunk=8")),
    ],
)
def test_parsing(text: str, expected: StrategySpec) -> None:
    assert StrategySpec.parse(text) == expected


def test_the_codec_option_is_a_default() -> None:
    assert StrategySpec.parse("ring", "bf16").codec == "bf16"
    assert StrategySpec.parse("ring+fp32", "bf16").codec == "fp32"
    assert StrategySpec.parse("ring", "topk:ratio=0.5").build().codec.options == {"ratio": 0.5}
    assert StrategySpec.parse("ring+int8:chunk=8", "topk:ratio=0.5").build().codec.options == {"chunk": 8}


@pytest.mark.parametrize(
    "text",
    [
        "ring",
        "ring+fp16",
        "ddp:bucket_mb=5:static_graph=true+bf16",
        "mine.py:Class:x=1",
        "ring+powersgd:rank=2:min_vector=9",
    ],
)
def test_words_survive_a_round_trip(text: str) -> None:
    assert str(StrategySpec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "strategy '' is not NAME"),
        ("+fp16", "strategy '.fp16' is not NAME"),
        ("ring+", "strategy 'ring.' is not NAME"),
        ("ddp:bucket_mb", "strategy 'ddp:bucket_mb': 'bucket_mb' is not option=value"),
        ("ddp::", "strategy 'ddp::': '' is not option=value"),
        ("rign", "unknown strategy 'rign'; did you mean 'ring'?"),
        ("ring+fp61", "unknown codec 'fp61'; did you mean 'fp16'?"),
        ("ring+:ratio=1", "strategy 'ring+:ratio=1' is not NAME"),
        ("ring+topk:ratio", "codec 'topk:ratio': 'ratio' is not option=value"),
        ("ring+topk:raito=1", "unknown option of codec topk 'raito'; did you mean 'ratio'?"),
        ("ring+topk:ratio=much", "option ratio of codec topk must be a number, not 'much'"),
        ("ring+topk:ratio=0", "option ratio of codec topk must be above 0 and at most 1, not 0"),
        ("ring+topk:ratio=nan", "option ratio of codec topk must be above 0 and at most 1, not nan"),
        ("ring+int8:chunk=1.5", "option chunk of codec int8 must be a whole number, not '1.5'"),
        ("ring+int8:chunk=0", "option chunk of codec int8 must be at least 1, not 0"),
        ("ring+powersgd:rank=0", "option rank of codec powersgd must be at least 1, not 0"),
        ("ring+fp16:chunk=1", "codec 'fp16' has no options, but 'chunk' was given"),
        ("gossip:pieces=2", "strategy 'gossip' has no options, but 'pieces' was given"),
        ("all-reduce:accumulate=0", "option accumulate of strategy all-reduce must be at least 1, not 0"),
        ("ddp:accumulate=0", "option accumulate of strategy ddp must be at least 1, not 0"),
        ("ring:average=weigths", "option average of strategy ring must be gradients or weights, not 'weigths'"),
        (
            "ring:average=weights+bf16",
            "strategy ring with average=weights cannot use codec bf16, because rounded weights lose small updates",
        ),
        ("ddp:buckets_mb=2", "unknown option of strategy ddp 'buckets_mb'; did you mean 'bucket_mb'?"),
        ("ddp:bucket_mb=many", "option bucket_mb of strategy ddp must be a number, not 'many'"),
        ("ddp:static_graph=yes", "option static_graph of strategy ddp must be true or false, not 'yes'"),
        (f"{WRONG}:surplus=1.5", "must be a whole number, not '1.5'"),
        ("ddp:codec=fp16", "unknown option of strategy ddp 'codec'"),
        ("no-such-file.py:Class", "strategy file 'no-such-file.py' does not exist"),
    ],
)
def test_mistakes_are_found_in_the_words(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        StrategySpec.parse(text).build()
    assert sentence.replace("'.fp16'", "'+fp16'").replace("'ring.'", "'ring+'") in str(caught.value)


def test_options_get_their_types() -> None:
    strategy = StrategySpec.parse("ddp:bucket_mb=5:static_graph=TRUE").build()
    assert strategy.options["bucket_mb"] == 5.0
    assert isinstance(strategy.options["bucket_mb"], float)
    assert strategy.options["static_graph"] is True
    assert "codec" not in strategy.options
    assert strategy.codec.name == "fp32"


def test_the_users_own_class() -> None:
    strategy = StrategySpec.parse(f"{WRONG}:surplus=16+bf16").build()
    assert strategy.name == "wrong-prediction"
    assert strategy.options == {"accumulate": 1, "surplus": 16}
    assert strategy.codec.name == "bf16"


@pytest.mark.parametrize("name", list(strategies.classes))
def test_every_strategy_builds_from_its_name_alone_and_afresh(name: str) -> None:
    first, second = StrategySpec.parse(name).build(), StrategySpec.parse(name).build()
    assert first is not second
    assert type(first) is strategies.classes[name]
    words = ":".join([name, *(f"{key}={value}" for key, value in first.options.items() if value is not None)])
    assert StrategySpec.parse(words).build().options == first.options


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
def test_a_bucket_that_cannot_be(value: str) -> None:
    with pytest.raises(UsageError, match="bucket_mb"):
        StrategySpec.parse(f"ddp:bucket_mb={value}").build()
