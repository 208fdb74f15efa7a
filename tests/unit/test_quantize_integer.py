"""The executor: integers alone, and bit for bit what one number at a time gives."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from integer_reference import run_reference, times
from paceline.errors import RunError, UsageError
from paceline.quantize import integer_ops
from paceline.quantize.fake_quant import Rounding, Simulated
from paceline.quantize.graph import Graph
from paceline.quantize.integer import integer_network
from paceline.quantize.integer_ops import Convolve, Multiply, Rescale, fixed_point, multiply
from paceline.quantize.ops import FloatOp
from paceline.quantize.quantized import quantize_graph, restore, tensors_of
from properties import examples
from quantize_samples import RandomNetwork, Walker, dequantize

INTEGERS = {torch.int8, torch.int32}
INT32 = st.integers(-(2**31), 2**31 - 1)
# Up to 1, so that every int32 comes out as one; the smallest shifts to nothing.
RATIOS = st.builds(Fraction, st.integers(1, 2**40), st.integers(2**40, 2**80))


@given(ratio=st.builds(Fraction, st.integers(1, 2**60), st.integers(1, 2**60)))
def test_a_multiplier_has_thirty_bits_and_is_the_nearest(ratio: Fraction) -> None:
    if ratio >= 2**14 - 1:
        return
    multiplier, shift = fixed_point(ratio)
    if multiplier == 0:
        assert ratio * 2**31 < Fraction(1, 2)  # no int32 times it is anything but 0
        return
    assert 2**29 <= multiplier < 2**30
    assert abs(Fraction(multiplier, 2**shift) - ratio) <= Fraction(1, 2 ** (shift + 1))


def test_what_was_stored_is_the_same_network_again() -> None:
    network = RandomNetwork(3, symmetric=False, per_channel=True, length=4)
    again = restore(network.model.graph, network.grids, tensors_of(network.model))
    images = network.images(4)
    assert torch.equal(integer_network(again).run(images), integer_network(network.model).run(images))
    fewer = {name: grid for name, grid in network.grids.items() if name != "input"}
    with pytest.raises(UsageError, match="another model: 'input' has no range"):
        restore(network.model.graph, fewer, tensors_of(network.model))
    with pytest.raises(UsageError, match="another model: they do not fit layer"):
        restore(network.model.graph, network.grids, {})


def test_a_processor_without_exact_products_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network = RandomNetwork(5, symmetric=False, per_channel=True, length=5)
    images = network.images(3)
    usual = integer_network(network.model).run(images)
    monkeypatch.setattr(integer_ops, "int_mm_is_exact", lambda: False)
    assert torch.equal(integer_network(network.model).run(images), usual)


def test_a_ratio_beyond_all_reason_is_refused() -> None:
    with pytest.raises(RunError, match="out of range"):
        fixed_point(Fraction(2**15))


@examples(300)
@given(ratios=st.lists(RATIOS, min_size=1, max_size=4), data=st.data())
def test_rescaling_is_exact_for_every_int32(ratios: list[Fraction], data: st.DataObject) -> None:
    edges = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**16, -(2**16), 0xFFFF, 2**15])
    row = st.lists(INT32 | edges, min_size=len(ratios), max_size=len(ratios))
    values = data.draw(st.lists(row, min_size=1, max_size=4))
    rescaled = Rescale(ratios)(torch.tensor(values, dtype=torch.int32))
    assert rescaled.dtype is torch.int32
    expected = [
        [times(value, (ratio.numerator, ratio.denominator)) for value, ratio in zip(line, ratios, strict=True)]
        for line in values
    ]
    assert rescaled.tolist() == expected


@given(value=st.integers(-1000, 1000), ratio=st.builds(Fraction, st.integers(1, 2**13), st.integers(1, 2**13)))
def test_what_makes_numbers_larger_is_exact_as_well(value: int, ratio: Fraction) -> None:
    rescaled = Rescale([ratio, Fraction(1, 1000)])(torch.tensor([value, value], dtype=torch.int32))
    assert int(rescaled[0]) == times(value, (ratio.numerator, ratio.denominator))
    assert abs(int(rescaled[0]) - ratio * value) <= Fraction(1, 2) + Fraction(1000 * 2**13, 2**29)


@examples(60)
@given(seed=st.integers(0, 2**31), symmetric=st.booleans(), per_channel=st.booleans(), length=st.integers(0, 4))
def test_random_networks_equal_the_scalar_reference_bit_for_bit(
    seed: int, symmetric: bool, per_channel: bool, length: int
) -> None:
    network = RandomNetwork(seed, symmetric=symmetric, per_channel=per_channel, length=length)
    images = network.images(2)
    found = integer_network(network.model).run(images)
    assert found.tolist() == [run_reference(network.model, image) for image in images.tolist()]


@examples(20)
@given(seed=st.integers(0, 2**31), symmetric=st.booleans())
def test_no_tensor_is_anything_but_int8_or_int32(seed: int, symmetric: bool) -> None:
    network = RandomNetwork(seed, symmetric=symmetric, per_channel=True, length=4)
    executor, images = integer_network(network.model), network.images(2)
    with Walker() as walker:
        executor.run(images)
    assert walker.seen
    assert set(walker.seen) <= INTEGERS, walker.seen


def test_no_constant_of_the_executor_is_a_float() -> None:
    network = RandomNetwork(3, symmetric=False, per_channel=True, length=6)
    steps = integer_network(network.model).steps
    held = [value for step in steps for value in vars(step).values() if isinstance(value, torch.Tensor)]
    held += [
        value
        for step in steps
        for part in (getattr(step, "finish", None), *getattr(step, "rescales", ()))
        for value in vars(getattr(part, "rescale", part) or object).values()
        if isinstance(value, torch.Tensor)
    ]
    assert any(isinstance(step, Convolve) for step in steps)
    assert len(held) > len(steps)
    assert {tensor.dtype for tensor in held} <= INTEGERS


def test_the_walker_sees_a_float() -> None:
    network = RandomNetwork(1, symmetric=False, per_channel=True, length=2)
    executor, images = integer_network(network.model), network.images(1)
    last = executor.steps[-1]
    assert isinstance(last, Multiply)
    object.__setattr__(last, "finish", lambda total: total * 0.5)
    with Walker() as walker:
        executor.run(images)
    assert torch.float32 in walker.seen


def test_products_are_exact_where_they_are_largest() -> None:
    a = torch.tensor([[-128, 127]], dtype=torch.int8).repeat(5, 300)
    b = torch.tensor([[-127], [127]], dtype=torch.int8).repeat(300, 7)
    assert multiply(a, b).unique().tolist() == [300 * (128 * 127 + 127 * 127)]


@given(rows=st.integers(1, 40), inner=st.integers(1, 70), columns=st.integers(1, 40), seed=st.integers(0, 999))
def test_products_are_exact_however_a_matrix_lies_in_memory(rows: int, inner: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randint(-128, 128, (inner, rows), generator=generator).to(torch.int8).t()
    b = torch.randint(-127, 128, (columns, inner), generator=generator).to(torch.int8).t()
    expected = a.to(torch.int64) @ b.to(torch.int64)
    assert torch.equal(multiply(a, b).to(torch.int64), expected)
    assert torch.equal(multiply(a.contiguous(), b.contiguous()).to(torch.int64), expected)


@pytest.mark.parametrize("seed", range(5))
def test_integers_and_their_simulation_differ_by_rounding_alone(seed: int) -> None:
    network = RandomNetwork(seed, symmetric=False, per_channel=True, length=0)
    images = network.images(20)
    executor = integer_network(network.model)
    grids = network.model.grids
    simulated = Simulated(network.model.graph, Rounding(grids=grids, biases=True))
    with torch.no_grad():
        expected = simulated(dequantize(grids["input"], images))
    found = executor.scores(dequantize(grids["input"], images))
    # The layer before the last may round to the neighbour where a number lies half-way: one step there.
    hidden, last = network.model.graph.layers[-2:]
    most = network.model.grid(hidden.name).scale * last.weight.abs().sum(1).max()
    assert float((found - expected).abs().max()) <= float(most) * 1.01


def test_what_has_no_integer_form_is_refused_by_name() -> None:
    network = RandomNetwork(1, symmetric=False, per_channel=True, length=1)
    graph = network.model.graph
    odd = FloatOp(name="odd", inputs=(graph.output,), what="softmax", call=torch.softmax)
    model = quantize_graph(Graph("input", (*graph.ops, odd), "odd"), network.grids, per_channel=True)
    with pytest.raises(UsageError, match=r"no integer form: softmax \(odd\)"):
        integer_network(model)
