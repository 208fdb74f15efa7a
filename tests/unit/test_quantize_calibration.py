"""Grids and ranges: zero is exact, nothing is off by more than half a step, and each method finds what it promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.codecs.rounding import LARGEST, as_int8, symmetric_scale, to_integers, to_numbers
from paceline.errors import UsageError
from paceline.quantize.calibration import METHODS, NUM_BINS, Calibration, Histogram, grids_for, histogram_of, observe
from paceline.quantize.fake_quant import Rounding, Simulated, rounded_bias
from paceline.quantize.fx_trace import trace
from paceline.quantize.quantized import LARGEST_BIAS, Grid, grid_for, weight_scales
from quantize_samples import Residual, dequantize, with_statistics

NUMBERS = st.floats(-1e6, 1e6, width=32)


def histogram(values: Tensor) -> Histogram:
    low, high = float(values.min()), float(values.max())
    return Histogram(low, high, histogram_of(values, low, high))


@given(values=st.lists(NUMBERS, min_size=1, max_size=20))
def test_symmetric_integers_are_off_by_half_a_step_at_most(values: list[float]) -> None:
    numbers = torch.tensor(values, dtype=torch.float64)
    scale = symmetric_scale(numbers.abs().amax())
    integers = to_integers(numbers, scale)
    assert float(integers.abs().max()) <= LARGEST
    assert torch.equal(as_int8(numbers, scale).double(), integers)
    assert float((to_numbers(integers, scale) - numbers).abs().max()) <= float(scale) / 2 * (1 + 1e-9)


@given(low=NUMBERS, high=NUMBERS, symmetric=st.booleans())
def test_a_grid_holds_zero_exactly_and_its_range_but_for_a_step(low: float, high: float, symmetric: bool) -> None:
    low, high = sorted((low, high))
    grid = grid_for(low, high, symmetric=symmetric)
    assert grid.rounded(torch.zeros(1)).item() == 0.0
    assert grid.quantize(torch.zeros(1)).item() == grid.zero_point
    bottom, top = grid.range
    slack = grid.scale * 1.001
    assert bottom <= min(low, 0.0) + slack
    assert top >= max(high, 0.0) - slack
    assert grid.low <= grid.zero_point <= grid.high
    assert grid.zero_point == 0 or not symmetric


def test_int8_and_back_is_what_rounding_says() -> None:
    grid = grid_for(-1.0, 3.0, symmetric=False)
    values = torch.linspace(-2, 4, 1000)
    assert torch.equal(dequantize(grid, grid.quantize(values)), grid.rounded(values))
    assert grid.quantize(values).unique().numel() == 256


def test_per_channel_scales_follow_each_channel_and_per_tensor_the_largest() -> None:
    weight = torch.tensor([[1.0, -2.0], [0.5, 0.25], [0.0, 0.0]])
    assert weight_scales(weight, per_channel=True).tolist() == pytest.approx([2 / 127, 0.5 / 127, 1.0])
    assert weight_scales(weight, per_channel=False).tolist() == pytest.approx([2 / 127] * 3)


@given(bias=st.floats(-1e4, 1e4), size=st.floats(0, 1e-12), input_scale=st.floats(1e-6, 1.0))
def test_a_bias_is_never_clipped(bias: float, size: float, input_scale: float) -> None:
    weight, biases = torch.tensor([[size, -size]]), torch.tensor([bias])
    scales = weight_scales(weight, per_channel=True, bias=biases, input_scale=input_scale)
    assert abs(bias / (float(scales[0]) * input_scale)) <= LARGEST_BIAS * 1.001
    rounded = rounded_bias(biases, scales, input_scale)
    assert abs(float(rounded[0]) - float(biases[0])) <= float(scales[0]) * input_scale / 2 * 1.001


def test_minmax_covers_all_that_was_seen() -> None:
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    found = Calibration(method="minmax").range(histogram(values))
    assert found == (float(values.min()), float(values.max()))


@pytest.mark.parametrize("percentile", [99.0, 99.9, 90.0])
def test_a_percentile_is_that_of_the_values(percentile: float) -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).double()
    counted = histogram(values)
    low, high = Calibration(method="percentile", percentile=percentile).range(counted)
    expected = [float(torch.quantile(values, q)) for q in (1 - percentile / 100, percentile / 100)]
    assert low == pytest.approx(expected[0], abs=2 * counted.width)
    assert high == pytest.approx(expected[1], abs=2 * counted.width)


def test_a_percentile_of_what_is_never_negative_begins_at_zero() -> None:
    values = torch.rand(10_000, generator=torch.Generator().manual_seed(0)).relu()
    low, high = Calibration(method="percentile", percentile=99.0).range(histogram(values))
    assert low == float(values.min())
    assert high == pytest.approx(0.99, abs=0.01)


@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_finds_the_range_with_the_least_error_on_the_values_themselves(symmetric: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.distributions.Laplace(0.0, 1.0).icdf(torch.rand(50_000, generator=generator).clamp(1e-6, 1 - 1e-6))
    values[:3] = torch.tensor([60.0, -50.0, 40.0])  # few, and far out

    def error(size: float) -> float:
        grid = grid_for(max(float(values.min()), -size), min(float(values.max()), size), symmetric=symmetric)
        return float((grid.rounded(values) - values).square().mean())

    calibration = Calibration(method="mse", symmetric=symmetric)
    low, high = calibration.range(histogram(values))
    found = float((grid_for(low, high, symmetric=symmetric).rounded(values) - values).square().mean())
    best = min(error(60.0 * number / 200) for number in range(1, 201))
    assert found <= best * 1.05
    assert found < error(60.0)


def divergence(counts: list[float], first: int, last: int) -> float:
    """Kullback and Leibler's, one bin at a time: bins first to last are kept, in 256 levels."""
    kept = counts[first : last + 1]
    clipped = [*kept]
    clipped[0] += sum(counts[:first])
    clipped[-1] += sum(counts[last + 1 :])
    levels: dict[int, list[int]] = {}
    for place in range(len(kept)):
        levels.setdefault(place * min(256, len(kept)) // len(kept), []).append(place)
    rounded = [0.0] * len(kept)
    for places in levels.values():
        filled = [place for place in places if kept[place] > 0]
        for place in filled:
            rounded[place] = sum(kept[other] for other in places) / len(filled)
    total, other_total = sum(clipped), sum(rounded)
    return sum(
        p / total * math.log((p / total) / max(q / other_total, 1e-12))
        for p, q in zip(clipped, rounded, strict=True)
        if p > 0
    )


def test_entropy_finds_the_range_that_says_most() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, generator=generator).abs()
    values[:3] = torch.tensor([12.0, 16.0, 11.0])
    counted = histogram(values)
    low, high = Calibration(method="entropy").range(counted)
    assert low == counted.low
    counts = counted.without_zero().tolist()
    best, expected = math.inf, 0.0
    for number in range(128, 0, -1):
        size = counted.high * number / 128
        inside = [place for place, centre in enumerate(counted.centres.tolist()) if centre <= size]
        if len(inside) >= 128:
            found = divergence(counts, inside[0], inside[-1])
            if found < best - 1e-12:
                best, expected = found, size
    assert high == pytest.approx(expected)
    assert high < 12.0


@pytest.mark.parametrize("method", METHODS)
def test_what_is_the_same_everywhere_has_a_grid(method: str) -> None:
    for value in (0.0, 2.0, -3.0):
        grid = Calibration(method=method).grid(histogram(torch.full((10,), value)))
        assert float(grid.rounded(torch.tensor(value))) == pytest.approx(value, abs=abs(value) / 200)


def test_zeros_count_as_their_neighbours() -> None:
    values = torch.cat([torch.zeros(1000), torch.rand(1000, generator=torch.Generator().manual_seed(0))])
    counted = histogram(values)
    assert float(counted.counts[0]) >= 1000
    assert float(counted.without_zero()[0]) < 100
    assert float(counted.coarser(64).counts.sum()) == len(values) == float(counted.counts.sum())


def test_observing_counts_every_number_of_every_tensor_with_a_grid() -> None:
    model = with_statistics(Residual())
    images = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    graph = trace(model, images[:2])
    found = observe(graph, lambda: iter(images.split(5)))
    sizes: dict[str, int] = {}
    graph.run(images, lambda name, values: sizes.__setitem__(name, values.numel()))
    assert {name: int(h.counts.sum()) for name, h in found.items()} == {
        name: size for name, size in sizes.items() if graph.grid_owner(name) == name
    }
    assert len(found[graph.input].counts) == NUM_BINS
    grids = grids_for(found, Calibration(method="minmax"))
    assert set(grids) == set(found)
    assert all(isinstance(grid, Grid) for grid in grids.values())


def test_nothing_to_observe_is_an_error() -> None:
    images = torch.randn(2, 3, 16, 16)
    graph = trace(with_statistics(Residual()), images)
    with pytest.raises(UsageError, match="calibration set is empty"):
        observe(graph, lambda: iter(()))
    with pytest.raises(UsageError, match="not finite"):
        observe(graph, lambda: iter([images * float("nan")]))


def test_an_unknown_method_or_percentile_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'minmax'"):
        Calibration(method="minmx")
    with pytest.raises(UsageError, match="--percentile"):
        Calibration(method="percentile", percentile=30)


def test_rounding_has_a_gradient_inside_the_range_and_none_outside() -> None:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    graph = trace(with_statistics(Residual()), images)
    grids = grids_for(observe(graph, lambda: iter([images])), Calibration(method="minmax"))
    model = Simulated(graph, Rounding(grids=grids, biases=True))
    given_images = (images * 3).requires_grad_()
    model(given_images).sum().backward()
    low, high = grids[graph.input].range
    assert given_images.grad is not None
    outside = (given_images < low) | (given_images > high)
    assert bool(outside.any())
    assert bool((given_images.grad[outside] == 0).all())
    assert bool((given_images.grad[~outside] != 0).any())
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in model.parameters())
