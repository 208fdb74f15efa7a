"""What one simulated convolution moves at every level, counted in closed form from its plan."""

from __future__ import annotations

from paceline.dataflow.levels import Accesses
from paceline.dataflow.plan import Pass, Plan
from paceline.dataflow.simulate import Simulation


def conv_accesses(simulation: Simulation) -> Accesses:
    """Words of a simulation. DRAM is read and written once; the buffer gives a word to all PEs that need it at once.

    Inputs are held by a PE as long as its window covers them, weights for a pass, partial sums until their column is
    added up; between folds the sums of columns wait in the buffer. A partial sum is written when its first product
    starts it, read and written with every addition, and read to be sent.
    """
    plan, shape = simulation.plan, simulation.plan.shape
    weights = shape.num_filters * shape.weights_per_output
    pixels = shape.num_images * shape.num_channels * shape.input_height * shape.input_width
    passes = list(plan.passes())
    loads = [_loads(plan, one) for one in passes]
    filter_moves, input_moves, filter_reads, input_reads = (sum(column) for column in zip(*loads, strict=True))
    carried = 2 * shape.num_outputs * (plan.num_folds - 1)
    hops = 0 if plan.is_serial else shape.num_outputs * (shape.kernel_height - plan.num_folds)
    starts = shape.num_outputs * (1 if plan.is_serial else shape.kernel_height)
    macs = shape.num_multiplications
    return Accesses(
        dram={"filter": weights, "input": pixels, "partial_sum": shape.num_outputs},
        buffer={
            "filter": filter_reads + weights,
            "input": input_reads + pixels,
            "partial_sum": carried + shape.num_outputs,
        },
        neighbour={"filter": filter_moves, "input": input_moves, "partial_sum": hops},
        register_file={
            "filter": macs + filter_moves,
            "input": macs + input_moves,
            "partial_sum": starts + 2 * shape.num_additions + hops,
        },
    )


def _loads(plan: Plan, one: Pass) -> tuple[int, int, int, int]:
    """Weights and inputs that PEs of a pass receive, and those that the buffer is read for."""
    shape = plan.shape
    rows = 1 if plan.is_serial else len(one.kernel_rows)
    lanes = shape.num_channels * (shape.kernel_height if plan.is_serial else 1)
    step = min(shape.stride[1], shape.kernel_width)
    pixels = shape.kernel_width + (shape.output_width - 1) * step  # of a row, that are used
    pes = rows * one.num_columns
    input_rows = sum(_input_rows(plan, strip.num_columns, rows) for strip in one.strips)
    return (
        pes * lanes * shape.kernel_width,
        pes * lanes * pixels,
        len(one.strips) * rows * lanes * shape.kernel_width,
        input_rows * lanes * pixels,
    )


def _input_rows(plan: Plan, columns: int, rows: int) -> int:
    """Different input rows per lane that a strip needs: diagonals of the array, or steps of a stride beyond them."""
    if plan.is_serial:
        return 1
    stride = plan.shape.stride[0]
    return (columns - 1) * min(stride, rows) + rows
