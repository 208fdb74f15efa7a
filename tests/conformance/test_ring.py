"""Ring all-reduce alone, for any length, number of workers and data type."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import build, build_for, on_threads
from paceline.codecs import TensorSpec
from paceline.comm import Counter
from paceline.strategies import ring
from paceline.train.context import Context
from properties import examples

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def vectors(length: int, world_size: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    # Small whole numbers: their sums are exact in every data type, so results must be equal.
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-20, 21, (length,), generator=generator).to(dtype) for _ in range(world_size)]


def ring_sum(context: Context, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, Counter]:
    vector = inputs[context.rank].clone()
    build_for("ring", context.comm).sum(vector)
    return vector, context.comm.counter


@examples(120)
@given(
    length=st.integers(0, 50),
    world_size=st.integers(1, 5),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
@example(length=0, world_size=3, dtype=torch.float32, seed=0)
@example(length=2, world_size=5, dtype=torch.int64, seed=0)
def test_ring_sums_and_sends_the_predicted_bytes(length: int, world_size: int, dtype: torch.dtype, seed: int) -> None:
    inputs = vectors(length, world_size, dtype, seed)
    total = torch.stack(inputs).to(torch.int64).sum(0).to(dtype)
    strategy = build("ring")
    spec = TensorSpec(length, dtype.itemsize)
    for rank, (result, counter) in enumerate(on_threads(world_size, ring_sum, inputs=inputs)):
        assert torch.equal(result, total)
        predicted = Counter.of(strategy.sum_traffic(spec, rank, world_size))
        counted = {key: nbytes for key, nbytes in predicted.nbytes.items() if nbytes}
        assert counter.nbytes == counted


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_chunks_of_several_pieces(dtype: torch.dtype) -> None:
    # Chunks of two and a half pieces, and one more number so that their lengths differ.
    length = 2 * (5 * ring.PIECE_BYTES // dtype.itemsize // 2) + 1
    inputs = vectors(length, 2, dtype)
    for result, counter in on_threads(2, ring_sum, inputs=inputs):
        assert torch.equal(result, inputs[0] + inputs[1])
        assert sum(counter.calls.values()) == 2 * 2 * 3


def test_ring_gives_the_same_bits_on_every_worker() -> None:
    # Values whose sum depends on the order of addition.
    inputs = [torch.randn(37, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(5)]
    results = [result for result, _ in on_threads(5, ring_sum, inputs=inputs)]
    assert all(torch.equal(result, results[0]) for result in results)


@given(numel=st.integers(0, 1000), world_size=st.integers(1, 64))
def test_chunks_cover_a_vector_and_differ_by_one_at_most(numel: int, world_size: int) -> None:
    sizes = ring.chunk_sizes(numel, world_size)
    assert len(sizes) == world_size
    assert sum(sizes) == numel
    assert max(sizes) - min(sizes) <= 1
