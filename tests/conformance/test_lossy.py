"""Every codec that loses something, under every strategy that carries it."""

from __future__ import annotations

import itertools

import pytest

import jobs
from helpers import build, on_threads, on_threads_supported
from paceline.codecs import codecs
from paceline.launch.local import LocalLauncher
from paceline.strategies import Guarantee, available_strategies
from paceline.study.verify import LOSSY_ROUNDINGS, cases, verify

PAIRS = [
    f"{strategy}+{codec}"
    for strategy, codec in itertools.product(available_strategies(), codecs.classes)
    if build(f"{strategy}+{codec}").guarantee is Guarantee.LOSSY
]


def test_lossless_codecs_keep_the_guarantee() -> None:
    for strategy, codec in itertools.product(available_strategies(), codecs.classes):
        loses = codecs.classes[codec].relative_error > 0
        guarantee = build(f"{strategy}+{codec}").guarantee
        if build(strategy).guarantee is Guarantee.EXACT:
            assert guarantee is (Guarantee.LOSSY if loses else Guarantee.EXACT)
    assert {"ring+fp16", "ring+bf16", "ddp+bf16"} <= set(PAIRS)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("pair", PAIRS)
def test_first_step_is_within_the_codecs_error(pool: LocalLauncher, pair: str, world_size: int) -> None:
    [row] = verify(cases([pair], [world_size], ["lenet5"]), pool, on_case=lambda _: None)
    assert row["guarantee"] == "LOSSY"
    assert row["tolerance"] == LOSSY_ROUNDINGS * world_size * build(pair).codec.relative_error
    assert row["passed"], row
    assert row["bytes_as_predicted"]
    # Something was lost: the codec was really on the way.
    assert row["max_relative_error"] > 1e-9


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if on_threads_supported(pair)])
def test_replicas_are_the_same_bits_and_traffic_shrinks(pair: str) -> None:
    workers = on_threads(3, jobs.certify, strategy=pair, changes={})
    plain = on_threads(3, jobs.certify, strategy=pair.partition("+")[0], changes={})
    for worker, exact in zip(workers, plain, strict=True):
        for step, row in enumerate(worker["steps"]):
            assert row["digest"] == workers[0]["steps"][step]["digest"]
            assert row["counted"] == row["predicted"]
            # Two bytes for each number instead of float64's eight.
            assert {key: 4 * nbytes for key, nbytes in row["counted"].items()} == exact["steps"][step]["counted"]
