"""Every codec: sums within the error that it states, and the traffic that it predicts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers import on_threads
from paceline.codecs import TensorSpec, build_codec, codecs
from paceline.comm import Counter, Operation
from paceline.errors import UsageError
from paceline.train.context import Context

WORLD_SIZE = 3
NUMBER_TYPES = ["fp32", "fp16", "bf16"]


def test_the_codecs_are_known() -> None:
    assert {"fp32", "fp16", "bf16", "int8", "topk", "powersgd"} <= set(codecs.classes)
    assert {name: cls.cast for name, cls in codecs.classes.items() if cls.cast} == {
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
    }
    with pytest.raises(UsageError, match="unknown codec 'fp61'; did you mean 'fp16'"):
        codecs.get("fp61")


def inputs(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    # From 0.001 to 1: within the range where float16 keeps all its bits.
    return [10 ** (-3 * torch.rand(50, generator=generator, dtype=dtype)) for _ in range(WORLD_SIZE)]


def all_reduce_traffic(spec: TensorSpec) -> list[Operation]:
    return [Operation("all_reduce", spec.nbytes)]


def encoded_sum(context: Context, name: str, values: list[Tensor]) -> tuple[Tensor, Counter]:
    tensor = values[context.rank].clone()
    build_codec(name).sum(tensor, context.comm.all_reduce, context.comm)
    return tensor, context.comm.counter


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NUMBER_TYPES)
def test_a_sum_is_within_the_stated_error(name: str, dtype: torch.dtype) -> None:
    codec = codecs.get(name)()
    values = inputs(dtype)
    exact = torch.stack(values).double().sum(0)
    predicted = codec.traffic(TensorSpec(50, dtype.itemsize), all_reduce_traffic, WORLD_SIZE)
    results = on_threads(WORLD_SIZE, encoded_sum, name=name, values=values)
    for result, counter in results:
        assert result.dtype is dtype
        assert torch.equal(result, results[0][0])
        error = ((result.double() - exact).abs() / exact).max()
        # Each of W numbers is rounded once, and each of W - 1 partial sums; without loss only the type's own rounding.
        own = torch.finfo(dtype).eps
        assert float(error) <= 2 * WORLD_SIZE * max(codec.relative_error, own)
        assert counter == Counter.of(predicted)
        if codec.relative_error:
            assert float(error) > own * WORLD_SIZE  # something was really lost


@pytest.mark.parametrize(("name", "nbytes"), [("fp32", 400), ("fp16", 200), ("bf16", 200)])
def test_what_a_tensor_of_100_float32_costs(name: str, nbytes: int) -> None:
    asked: list[TensorSpec] = []

    def traffic(spec: TensorSpec) -> list[Operation]:
        asked.append(spec)
        return [Operation("send", spec.nbytes, 1)]

    assert codecs.get(name)().traffic(TensorSpec(100, 4), traffic, 2) == [Operation("send", nbytes, 1)]
    assert len(asked) == 1


@pytest.mark.parametrize("name", NUMBER_TYPES)
def test_the_stated_error_is_that_of_one_number(name: str) -> None:
    codec = codecs.get(name)()
    values = 1 + torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent: list[Tensor] = []
    codec.sum(values.clone(), lambda tensor: sent.append(tensor.clone()), comm=None)  # type: ignore[arg-type]
    error = float(((sent[0].double() - values).abs() / values).max())
    assert error <= codec.relative_error
    assert error >= codec.relative_error / 2  # and it is not stated larger than it is


def test_float16_overflows_beyond_its_range() -> None:
    tensor = torch.tensor([70_000.0])
    codecs.get("fp16")().sum(tensor, lambda _: None, comm=None)  # type: ignore[arg-type]
    assert torch.isinf(tensor).all()
    tensor = torch.tensor([70_000.0])
    codecs.get("bf16")().sum(tensor, lambda _: None, comm=None)  # type: ignore[arg-type]
    assert torch.isfinite(tensor).all()
