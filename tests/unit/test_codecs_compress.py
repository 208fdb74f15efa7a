"""Codecs that send less than every number: bounds of their error, what is not a number, and what they keep."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from helpers import on_threads
from paceline.codecs import Codec, TensorSpec, build_codec, codecs
from paceline.comm import Counter, Operation
from paceline.errors import UsageError
from paceline.train.context import Context
from properties import examples

COMPRESSING = ["int8", "int8:chunk=3", "topk", "topk:ratio=0.3", "topk:ratio=1", "powersgd:min_vector=1"]
COMPRESSING += ["powersgd:rank=1:min_vector=1"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def sums(context: Context, codec: str, steps: list[list[Tensor]]) -> tuple[list[Tensor], Codec, Counter]:
    """Sum each step's tensor of this worker."""
    built, results = build_codec(codec), []
    for tensors in steps:
        tensor = tensors[context.rank].clone()
        built.sum(tensor, context.comm.all_reduce, context.comm, key="k")
        results.append(tensor)
    return results, built, context.comm.counter


def length(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def randoms(shape: tuple[int, ...], world_size: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    # Over three orders of magnitude, so that small numbers stand beside large ones.
    sizes = [10 ** (-3 * torch.rand(shape, generator=generator)) for _ in range(world_size)]
    return [(size * torch.randn(shape, generator=generator)).to(dtype) for size in sizes]


@examples(150)
@given(
    codec=st.sampled_from(COMPRESSING),
    shape=st.one_of(st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 25), st.integers(1, 25))),
    world_size=st.integers(1, 4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
@example(codec="int8", shape=(2049,), world_size=3, dtype=torch.float32, seed=0)
@example(codec="topk", shape=(), world_size=2, dtype=torch.float32, seed=0)
def test_the_error_of_a_sum_is_bounded(
    codec: str, shape: tuple[int, ...], world_size: int, dtype: torch.dtype, seed: int
) -> None:
    values = randoms(shape, world_size, dtype, seed)
    exact = torch.stack(values).double().sum(0)
    put_in = sum(length(value) for value in values)
    built = build_codec(codec)
    predicted = Counter.of(
        built.traffic(TensorSpec.of(values[0]), lambda spec: [Operation("all_reduce", spec.nbytes)], world_size)
    )
    # The tensor's own type rounds every partial sum, and once more what comes of it.
    bound = built.error_bound(world_size) + (world_size + 1) * torch.finfo(dtype).eps
    workers = on_threads(world_size, sums, codec=codec, steps=[values])
    for [result], _, counter in workers:
        assert result.dtype is dtype
        assert result.shape == values[0].shape
        assert length(result - exact) <= bound * put_in
        assert torch.equal(result, workers[0][0][0])
        assert counter == predicted


def test_the_bound_of_int8_is_reached() -> None:
    # One large number, and beside it numbers of half a scale: each is lost whole.
    values = torch.full((1024,), 0.999 / 254, dtype=torch.float64)
    values[0] = 1.0
    [([result], codec, _)] = on_threads(1, sums, codec="int8", steps=[[values]])
    assert length(result - values) / length(values) > 0.98 * codec.error_bound(1)
    assert codec.error_bound(1) == 32 / 254
    assert build_codec("int8:chunk=1000000").error_bound(1) == 1.0


def test_the_bound_of_topk_is_reached() -> None:
    [([result], codec, _)] = on_threads(1, sums, codec="topk:ratio=0.25", steps=[[torch.ones(100)]])
    assert int(result.count_nonzero()) == 25
    assert length(result - 1) / 10 == pytest.approx(codec.error_bound(1))


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_stay_zeros(codec: str, dtype: torch.dtype) -> None:
    zeros = [torch.zeros(20, 20, dtype=dtype)] * 2
    for results, _, _ in on_threads(2, sums, codec=codec, steps=[zeros, zeros]):
        assert all(torch.equal(result, zeros[0]) for result in results)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_a_number_reaches_everybody_and_is_forgotten(codec: str, dtype: torch.dtype, value: float) -> None:
    """As a GradScaler needs it: the step is skipped everywhere, and the next is as good as ever."""
    spoilt, later = randoms((20, 20), 2, dtype, 0), randoms((20, 20), 2, dtype, 1)
    spoilt[1][3, 4] = value
    spoilt[1][7] = value  # more of them than one in a hundred
    workers = on_threads(2, sums, codec=codec, steps=[spoilt, later, later])
    for [first, second, third], built, _ in workers:
        assert not torch.isfinite(first[7]).all()
        assert not torch.isfinite(first).all()
        assert torch.isfinite(second).all()
        assert float(second.count_nonzero()) > 0
        assert torch.equal(third, workers[0][0][2])
        assert all(torch.isfinite(kept).all() for kept in built.state_dict().values())


@pytest.mark.parametrize("codec", ["topk:ratio=0.1", "powersgd:rank=2"])
def test_what_goes_in_comes_out_in_the_end(codec: str) -> None:
    """The same matrix again and again: what all keep together stays small, so the mean of what comes out is exact.

    What one worker keeps may grow, in directions in which workers disagree for good: that cancels in the sum.
    """
    matrix = randoms((30, 20), 2, torch.float64, 0)
    num_steps = 200
    workers = on_threads(2, sums, codec=codec, steps=[matrix] * num_steps)
    results = workers[0][0]
    together = sum(built.state_dict()["error.k"] for _, built, _ in workers)
    exact = matrix[0] + matrix[1]
    mean = torch.stack(results).mean(0)
    first = length(results[0] - exact) / length(exact)
    assert first > 0.3
    assert length(mean - exact) / length(exact) < 0.1 * first
    assert length(together) < 0.1 * num_steps * length(exact)


def test_factors_of_a_matrix_of_that_rank_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    thin = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    values = [thin @ torch.randn(2, 30, generator=generator, dtype=torch.float64) for _ in range(3)]
    for [result], _, _ in on_threads(3, sums, codec="powersgd:rank=2", steps=[values]):
        # Columns of a product in float64, some of them nearly alike.
        torch.testing.assert_close(result, sum(values), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("codec", ["topk", "powersgd:min_vector=1"])
def test_a_tensor_cut_anew_starts_from_nothing(codec: str) -> None:
    before, after = randoms((400,), 2, torch.float32, 0), randoms((500,), 2, torch.float32, 1)
    changed = on_threads(2, sums, codec=codec, steps=[before, after])
    fresh = on_threads(2, sums, codec=codec, steps=[after])
    assert torch.equal(changed[0][0][1], fresh[0][0][0])


@pytest.mark.parametrize("codec", ["topk:ratio=0.1", "powersgd:rank=2"])
def test_state_is_a_copy(codec: str) -> None:
    matrix = randoms((30, 20), 1, torch.float32, 0)
    [(_, built, _)] = on_threads(1, sums, codec=codec, steps=[matrix])
    state = built.state_dict()
    assert "error.k" in state
    again = build_codec(codec)
    again.load_state_dict(state)
    state["error.k"].fill_(9.0)
    for codec_with_state in (built, again):
        assert float(codec_with_state.state_dict()["error.k"].abs().max()) < 9


def test_what_a_codec_cannot_keep_is_refused() -> None:
    with pytest.raises(UsageError, match=r"codec fp16 has no state, but the checkpoint contains error\.0; resume"):
        build_codec("fp16").load_state_dict({"error.0": torch.zeros(1)})
    for name in codecs.classes:
        build_codec(name).load_state_dict({})


@pytest.mark.parametrize(
    ("codec", "shape", "nbytes"),
    [
        ("int8", (100,), [104]),
        ("int8:chunk=10", (101,), [101 + 44]),
        ("topk", (100,), [8]),
        ("topk:ratio=0.07", (10, 10), [7 * 8]),
        ("topk", (), [8]),
        ("powersgd", (100, 50), [100 * 4 * 4, 50 * 4 * 4]),
        ("powersgd:rank=1", (10, 5, 2), [40, 40]),
        ("powersgd", (4, 50), [800]),  # as a matrix of four rows it has nothing to save
        ("powersgd", (16000,), [64000]),
        ("powersgd", (16385,), [129 * 16, 128 * 16]),
    ],
)
def test_bytes_of_a_float32_tensor(codec: str, shape: tuple[int, ...], nbytes: list[int]) -> None:
    spec = TensorSpec.of(torch.empty(shape))
    operations = build_codec(codec).traffic(spec, lambda s: [Operation("all_reduce", s.nbytes)], 4)
    assert [operation.nbytes for operation in operations] == nbytes


def test_several_at_once_are_as_each_alone() -> None:
    shapes = [(30, 20), (7,), (), (5, 5, 5)]

    def work(context: Context, codec: str, together: bool) -> tuple[list[Tensor], Counter]:
        comm, built = context.comm, build_codec(codec)
        tensors = [randoms(shape, 2, torch.float64, index)[context.rank] for index, shape in enumerate(shapes)]
        for _ in range(2):
            if together:
                built.sum_together(tensors, comm.all_reduce, comm, range(4))
            else:
                for key, tensor in enumerate(tensors):
                    built.sum(tensor, comm.all_reduce, comm, key)
        return tensors, comm.counter

    for codec in [*COMPRESSING, "powersgd", "fp16", "fp32"]:
        for (many, in_all), (ones, apart) in zip(
            on_threads(2, work, codec=codec, together=True),
            on_threads(2, work, codec=codec, together=False),
            strict=True,
        ):
            assert all(torch.equal(a, b) for a, b in zip(many, ones, strict=True))
            assert in_all.nbytes == apart.nbytes
