"""The chain reduction of `ring-reduce` alone, for any length, number of workers and number of pieces."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from helpers import build, on_threads
from paceline.codecs import TensorSpec
from paceline.comm import Counter
from paceline.strategies.ring_reduce import sum_there_and_back
from paceline.train.context import Context
from properties import examples


def travelled(context: Context, inputs: list[torch.Tensor], piece_bytes: int) -> tuple[torch.Tensor, Counter]:
    vector = inputs[context.rank].clone()
    sum_there_and_back(vector, context.comm, piece_bytes=piece_bytes)
    return vector, context.comm.counter


@examples(100)
@given(
    length=st.integers(0, 60),
    world_size=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]),
    piece_bytes=st.sampled_from([8, 24, 1 << 20]),
    seed=st.integers(0, 1000),
)
@example(length=60, world_size=4, dtype=torch.int64, piece_bytes=8, seed=0)  # many more pieces than posted receives
@example(length=1, world_size=5, dtype=torch.float32, piece_bytes=8, seed=0)
def test_it_sums_and_sends_the_predicted_bytes(
    length: int, world_size: int, dtype: torch.dtype, piece_bytes: int, seed: int
) -> None:
    # Small whole numbers: their sums are exact in every data type, so results must be equal.
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randint(-20, 21, (length,), generator=generator).to(dtype) for _ in range(world_size)]
    total = torch.stack(inputs).to(torch.int64).sum(0).to(dtype)
    spec = TensorSpec(length, dtype.itemsize)
    answers = on_threads(world_size, travelled, inputs=inputs, piece_bytes=piece_bytes)
    for rank, (result, counter) in enumerate(answers):
        assert torch.equal(result, total)
        predicted = Counter.of(build("ring-reduce").sum_traffic(spec, rank, world_size))
        assert counter.nbytes == {key: nbytes for key, nbytes in predicted.nbytes.items() if nbytes}


def test_numbers_are_added_in_order_of_rank() -> None:
    # Values whose sum depends on the order of addition.
    inputs = [torch.randn(37, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(5)]
    expected = inputs[0].clone()
    for vector in inputs[1:]:
        expected = vector + expected
    for result, _ in on_threads(5, travelled, inputs=inputs, piece_bytes=16):
        assert torch.equal(result, expected)


def test_no_worker_sends_more_than_the_vector_to_a_neighbour() -> None:
    strategy, spec = build("ring-reduce"), TensorSpec(1000, 4)
    sent = []
    for rank in range(4):
        operations = strategy.sum_traffic(spec, rank, 4)
        sent.append({op.peer: op.nbytes for op in operations if op.op == "send"})
    assert sent == [{1: 4000}, {0: 4000, 2: 4000}, {1: 4000, 3: 4000}, {2: 4000}]
