"""Memory accesses and energy of one simulated convolution, with the rules of `row_stationary`."""

from __future__ import annotations

from paceline.dataflow.accesses import Accesses
from paceline.dataflow.chips import load_chip
from paceline.dataflow.placement import Pass, Placement
from paceline.dataflow.simulator import Simulation
from paceline.results.dataflow import ArrayUse, ConvResult, EnergyByLevel, LogicalSet
from paceline.results.study import SCHEMA


def conv_accesses(simulation: Simulation) -> Accesses:
    """Count the words moved. DRAM is accessed once per word; the buffer multicasts a word to all PEs that need it.

    Inputs are held by a PE as long as its window covers them, weights for a pass, partial sums until their column is
    added up; between folds the sums of a column wait in its first PE. A partial sum is written when its first product
    starts it, read and written with every addition, and read to be sent or to be added as one that was kept.
    """
    plan, shape = simulation.plan, simulation.plan.shape
    weights, pixels = shape.num_filters * shape.weights_per_output, shape.num_read_pixels
    outputs, macs = shape.num_outputs, shape.num_multiplications
    loads = [_loads(plan, one) for one in plan.passes()]
    filter_moves, input_moves, filter_reads, input_reads = (sum(column) for column in zip(*loads, strict=True))
    kept = outputs * (plan.num_folds - 1)
    hops = 0 if plan.is_serial else outputs * (shape.kernel_height - plan.num_folds)
    starts = outputs * (1 if plan.is_serial else shape.kernel_height)
    return Accesses(
        dram={"filter": weights, "input": pixels, "partial_sum": outputs},
        buffer={
            "filter": weights + filter_reads,
            "input_fill": pixels,
            "input": input_reads,
            "partial_sum": 2 * outputs,
        },
        neighbour={"filter": filter_moves, "input": input_moves, "partial_sum": hops},
        register_file={
            "filter": macs + filter_moves,
            "input": macs + input_moves,
            "partial_sum": starts + 2 * shape.num_additions + hops + kept + outputs,
        },
    )


def _loads(plan: Placement, one: Pass) -> tuple[int, int, int, int]:
    """Weights and inputs that the PEs of a pass receive, then weights and inputs that are read from the buffer."""
    shape = plan.shape
    rows = 1 if plan.is_serial else len(one.kernel_rows)
    lanes = shape.num_channels * (shape.kernel_height if plan.is_serial else 1)
    pes = rows * one.num_columns
    num_filters = len({strip.filter for strip in one.strips})
    return (
        pes * lanes * shape.kernel_width,
        pes * lanes * shape.row_reads,
        num_filters * rows * lanes * shape.kernel_width,
        _input_rows(plan, one) * shape.num_channels * shape.row_reads,
    )


def _input_rows(plan: Placement, one: Pass) -> int:
    """Different rows of input images that a pass reads; sets side by side share them."""
    strips = {(strip.image, strip.first_row, strip.num_columns) for strip in one.strips}
    return len(
        {
            (image, row * plan.shape.stride[0] + kernel_row)
            for image, first, count in strips
            for row in range(first, first + count)
            for kernel_row in one.kernel_rows
        }
    )


def conv_result(simulation: Simulation) -> ConvResult:
    """Return the results of a simulation, with the energy of the built-in chip."""
    plan = simulation.plan
    shape, timing = plan.shape, plan.timing
    moved, chip = conv_accesses(simulation), load_chip("eyeriss")
    return ConvResult(
        schema=SCHEMA,
        model=timing.model,
        multiply_cycles=timing.multiply_cycles,
        add_cycles=timing.add_cycles,
        output=simulation.operands.shown(simulation.output).tolist(),
        cycles=simulation.cycles,
        pes=plan.num_logical_pes,
        utilisation=simulation.utilisation,
        set=LogicalSet(rows=shape.kernel_height, columns=shape.output_height, side_by_side=plan.num_sets_side_by_side),
        array=ArrayUse(
            rows=plan.array[0],
            columns=plan.array[1],
            pes=plan.array[0] * plan.array[1],
            utilisation=simulation.array_utilisation,
        ),
        folds=plan.num_folds,
        strip_columns=plan.strip_columns,
        multiplications=shape.num_multiplications,
        additions=shape.num_additions,
        accesses=moved.counts(),
        energy=EnergyByLevel(mac=shape.num_multiplications * chip.energy.mac, **moved.energy(chip)),
    )
