"""The array against a convolution written out as its definition, and its cycles against the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from dataflow_reference import arrays, convolutions, convolve, timings
from paceline.dataflow.matrices import make_operands, read_matrix
from paceline.dataflow.simulator import Simulation
from paceline.dataflow.timing import MODELS, Timing
from paceline.errors import UsageError
from properties import examples

IMAGE = read_matrix("1 3 9; 4 5 6; 7 4 9", "--input")
KERNEL = read_matrix("-1 2; 2 -1", "--kernel")
ARRAYS = [None, (1, 1), (1, 2), (2, 1), (2, 2), (3, 5), (12, 14)]


def worked(model: str, array: tuple[int, int] | None = None) -> Simulation:
    return Simulation.of(make_operands(IMAGE, KERNEL), Timing(model=model), array)


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("model", MODELS)
def test_the_worked_example_on_every_array(model: str, array: tuple[int, int] | None) -> None:
    simulation = worked(model, array)
    assert simulation.operands.without_added_axes(simulation.output).tolist() == [[8, 19], [16, 6]]
    assert simulation.plan.num_logical_pes == 4


@pytest.mark.parametrize(
    ("model", "cycles", "utilisation"),
    [("serial", 28, 1 / 4), ("single-alu", 8, 28 / 32), ("pipelined", 6, 22 / 24), ("mac", 4, 1)],
)
def test_cycles_of_the_worked_example(model: str, cycles: int, utilisation: float) -> None:
    simulation = worked(model)
    assert simulation.cycles == cycles
    assert simulation.utilisation == pytest.approx(utilisation)


@examples(2500)
@given(convolutions(), arrays(), timings())
def test_any_convolution_is_right(case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing) -> None:
    images, filters, operands = case
    shape = operands.shape
    simulation = Simulation.of(operands, timing, array)
    assert (simulation.output == convolve(images, filters, stride=shape.stride, padding=shape.padding)).all()
    tensors = [torch.from_numpy(values.astype(np.float64)) for values in (images, filters)]
    expected = torch.nn.functional.conv2d(*tensors, stride=shape.stride, padding=shape.padding)
    assert (simulation.output == expected.numpy()).all()


@examples(400)
@given(convolutions(), arrays())
def test_operations_mapped_are_those_of_the_layer(case: tuple[Any, Any, Any], array: tuple[int, int] | None) -> None:
    """Under single-alu a PE that works does exactly one operation per cycle: busy cycles are operations."""
    _, _, operands = case
    simulation = Simulation.of(operands, Timing(model="single-alu"), array)
    shape = operands.shape
    assert simulation.busy_pes.sum() == shape.num_multiplications + shape.num_additions
    assert len(simulation.busy_pes) == simulation.cycles
    assert 0 < simulation.utilisation <= 1
    assert 0 < simulation.array_utilisation <= 1
    serial = Simulation.of(operands, Timing(model="serial"), array)
    assert serial.cycles == shape.num_multiplications + shape.num_additions


@examples(300)
@given(convolutions(), arrays(), timings())
def test_utilisation_is_that_of_the_cycles(
    case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing
) -> None:
    """In closed form, and cycle by cycle."""
    simulation = Simulation.of(case[2], timing, array)
    share = simulation.busy_pes.sum() / (simulation.plan.num_logical_pes * simulation.cycles)
    assert simulation.utilisation == pytest.approx(share, rel=1e-12)  # one division more


def test_arrays_and_operations_of_any_size() -> None:
    """Neither has a part in memory or time that grows with it."""
    huge = worked("single-alu", (999_999_999, 999_999_999))
    assert (huge.cycles, huge.plan.places) == (8, [(0, 0), (0, 1), (1, 0), (1, 1)])
    timing = Timing(multiply_cycles=1_000_000_000, add_cycles=1_000_000_000)
    slow = Simulation.of(make_operands(IMAGE, KERNEL), timing)
    assert slow.cycles == 8_000_000_000
    assert slow.utilisation == pytest.approx(28 / 32)


def test_the_places_of_a_plan() -> None:
    """13 output rows on 6 columns: strips of 6, 6 and 1; sets of 3 rows, two of them below each other."""
    operands = make_operands(read_matrix("random:15x9", "--input"), read_matrix("random:3x3", "--kernel"))
    plan = Simulation.of(operands, Timing(), (7, 6)).plan
    assert plan.num_passes == len(list(plan.passes())) == 2
    assert plan.places == [(row, column) for row in range(6) for column in range(6)]
    alone = Simulation.of(operands, Timing(model="serial"), (7, 6)).plan
    assert (alone.places, alone.num_passes) == ([(0, 0)], 13)


@examples(300)
@given(convolutions(), timings())
def test_the_general_rule_of_cycles(case: tuple[Any, Any, Any], timing: Timing) -> None:
    """A set at a time: F outputs of K = C S products per PE, then R - 1 additions per output and column."""
    _, _, operands = case
    shape = operands.shape
    sets, outputs = shape.num_images * shape.num_filters, shape.output_width
    taps, multiply, add = shape.num_channels * shape.kernel_width, timing.multiply_cycles, timing.add_cycles
    row = outputs * (taps * multiply + (taps - 1) * add)
    column = outputs * (shape.kernel_height - 1) * add
    assert Simulation.of(operands, replace(timing, model="single-alu")).cycles == sets * (row + column)
    assert Simulation.of(operands, replace(timing, model="mac")).cycles == sets * outputs * taps * multiply


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_two_rows_take_what_the_short_formula_says(width: int, outputs: int) -> None:
    operands = make_operands(np.ones((4, outputs + width - 1)), np.ones((2, width)))
    cycles = Simulation.of(operands, Timing()).cycles
    assert cycles == outputs * (2 * width - 1) + (2 - 1) + (outputs - 1)


@pytest.mark.parametrize(("multiply", "add"), [(1, 1), (2, 1), (3, 3)])
@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("outputs", [1, 2, 7])
def test_a_pipelined_pair_of_rows_hides_its_sums(width: int, outputs: int, multiply: int, add: int) -> None:
    """The adder is free once per output, while the first product of the next is made: enough for one sum."""
    operands = make_operands(np.ones((4, outputs + width - 1)), np.ones((2, width)))
    timing = Timing(model="pipelined", multiply_cycles=multiply, add_cycles=add)
    assert Simulation.of(operands, timing).cycles == outputs * width * multiply + 2 * add


@examples(300)
@given(convolutions(), arrays(), timings())
def test_models_are_ordered(case: tuple[Any, Any, Any], array: tuple[int, int] | None, timing: Timing) -> None:
    """More can happen at once from one model to the next, so it never takes longer."""
    _, _, operands = case
    order = ("mac", "pipelined", "single-alu", "serial")
    cycles = [Simulation.of(operands, replace(timing, model=model), array).cycles for model in order]
    assert cycles == sorted(cycles)


def test_folding_and_replication() -> None:
    images, filters = read_matrix("random:2x3x9x9:1", "--input"), read_matrix("random:4x3x5x3:2", "--kernel")
    operands = make_operands(images, filters)
    whole = Simulation.of(operands, Timing())
    assert (whole.plan.set_rows, whole.plan.strip_columns, whole.plan.slots) == (5, 5, (1, 1))
    folded = Simulation.of(operands, Timing(), (2, 3))
    assert (folded.plan.num_folds, folded.plan.strip_columns, folded.plan.num_strips) == (3, 3, 16)
    assert folded.cycles > whole.cycles
    replicated = Simulation.of(operands, Timing(), (10, 15))
    assert replicated.plan.slots == (2, 3)
    assert replicated.plan.num_logical_pes == 6 * 25
    assert replicated.cycles * 4 == whole.cycles  # eight sets, six at once: two passes instead of eight
    for simulation in (whole, folded, replicated):
        assert (simulation.output == convolve(images, filters, stride=(1, 1), padding=(0, 0))).all()


def test_floating_point_stays_near_the_reference() -> None:
    """Sums are taken in another order than torch's: 1e-12 allows some hundred roundings of float64."""
    random = np.random.default_rng(3)
    images, filters = random.normal(size=(2, 8, 14, 14)), random.normal(size=(4, 8, 3, 3))
    output = Simulation.of(make_operands(images, filters, padding=(1, 1)), Timing(), (12, 14)).output
    expected = torch.nn.functional.conv2d(torch.from_numpy(images), torch.from_numpy(filters), padding=1)
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-12, atol=1e-12)


def test_axes_of_the_output() -> None:
    def shown(images: str, filters: str, **more: int) -> tuple[int, ...]:
        operands = make_operands(read_matrix(images, "--input"), read_matrix(filters, "--kernel"), **more)  # type: ignore[arg-type]
        return operands.without_added_axes(Simulation.of(operands, Timing()).output).shape

    assert shown("random:5x5", "random:2x2") == (4, 4)
    assert shown("random:3x5x5", "random:3x2x2") == (4, 4)
    assert shown("random:3x5x5", "random:6x3x2x2") == (6, 4, 4)
    assert shown("random:2x3x5x5", "random:3x2x2") == (2, 1, 4, 4)
    assert shown("random:10x5", "random:4x2", num_filters=2) == (2, 9, 4)
    assert shown("random:10x5", "random:2x2", num_images=2) == (2, 1, 4, 4)


def test_requests_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="no PEs"):
        Simulation.of(make_operands(IMAGE, KERNEL), Timing(), (0, 3))
    with pytest.raises(UsageError, match="unknown execution model 'systolic'"):
        Timing(model="systolic")
    with pytest.raises(UsageError, match="--add-cycles must be at least 1 and at most 1,000,000,000, not 0"):
        Timing(add_cycles=0)
    with pytest.raises(UsageError, match="--multiply-cycles must be at least 1 and at most 1,000,000,000"):
        Timing(multiply_cycles=10**30)
