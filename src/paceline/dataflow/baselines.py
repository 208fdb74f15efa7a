"""Memory accesses of other accelerator dataflows, as baselines for the row-stationary dataflow.

The baselines are weight-stationary, output-stationary, input-stationary and no-local-reuse. They use the processing
elements (PEs), buffer and DRAM of the same chip. A PE holds one word of the stationary data, if there is any, and has
no scratch pads.

The PEs compute one block of a layer at a time, in parallel. With output-stationary, partial sums stay in the PEs. With
the other dataflows, the buffer holds the partial sums of one tile of outputs at a time. A candidate is a choice of
block and tile sizes that fits the chip. The function of each dataflow returns the accesses of all candidates. For a
fair comparison, `best_accesses` uses the candidate with the least energy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.dataflow.accesses import LEVELS, Accesses
from paceline.dataflow.chips import Chip
from paceline.dataflow.shape import Amount, Shape, ceiling, part_sizes
from paceline.errors import UsageError


@dataclass(frozen=True)
class Tiles:
    """Sizes of a tile. A tile is the outputs whose partial sums are in the buffer at the same time.

    The sizes are numbers of filters (m), images (n) and output rows (e). Each field is an array with one value per
    candidate, which is a choice of block and tile sizes.
    """

    m: Amount
    n: Amount
    e: Amount


# Returns whether a block may be used. Its arguments are the sizes of the block, which differ between dataflows.
Allowed = Callable[..., bool]


def any_block(*_: int) -> bool:
    return True


def best_accesses(dataflow: str, shape: Shape, chip: Chip, allowed: Allowed = any_block) -> Accesses:
    """Return the accesses of one channel group of a layer, with the block and tile sizes that need the least energy.

    `dataflow` is a key of BASELINES. `shape` describes one channel group. `allowed` returns whether a block of
    given sizes may be used.
    """
    candidates = BASELINES[dataflow](shape, chip, allowed)
    energy = np.asarray(sum(candidates.energy(chip).values()), dtype=float)
    best = int(np.argmin(energy))
    levels = {
        level: {
            kind: float(np.broadcast_to(words, energy.shape)[best])
            for kind, words in getattr(candidates, level).items()
        }
        for level in LEVELS
    }
    return Accesses(**levels)


def weight_stationary(shape: Shape, chip: Chip, allowed: Allowed) -> Accesses:
    """Return the accesses of every candidate (block and tile sizes) if each PE (processing element) holds one weight.

    A plane has the weights of one filter and one channel, and is held by R x S PEs (R x S is the kernel size). A block
    has the planes of some filters and some channels. Inputs are sent to all PEs that need them. Partial sums are sent
    from PE to PE and then to the buffer. A plane with more weights than the chip has PEs is divided into folds: every
    fold reads the inputs and the partial sums from the buffer again. Blocks that `allowed` rejects are left out.
    """
    plane = shape.kernel_height * shape.kernel_width
    folds = ceiling(plane, chip.num_pes)
    blocks = _filters_and_channels(shape, max(1, chip.num_pes // plane), allowed)
    (a, b), tiles = _with_tiles(shape, chip, blocks, lambda a, b, n, rows: (a, n * b * rows * shape.row_reads, 0))
    macs, loads = shape.num_multiplications, _loads(shape, tiles)
    pixels = shape.num_images * shape.num_channels * shape.rows.read_in_strips(tiles.e) * shape.row_reads
    return Accesses(
        dram=loads,
        buffer={
            "filter": 2 * loads["filter"],
            "input_fill": loads["input"],
            "input": pixels * ceiling(shape.num_filters, a) * folds,
            "partial_sum": 2 * shape.num_outputs * ceiling(shape.num_channels, b) * folds,
        },
        neighbour={"filter": loads["filter"], "input": macs, "partial_sum": macs},
        register_file={"filter": macs + loads["filter"]},
    )


def output_stationary(shape: Shape, chip: Chip, allowed: Allowed) -> Accesses:
    """Return the accesses of every candidate (block sizes) if each PE holds one output until the output is complete.

    A PE is a processing element. A block has the outputs of some filters, in a rectangle of output rows and columns.
    Each weight is sent to all PEs that compute outputs of the weight's filter, and each input to the PEs of all filters
    in the block. Blocks that `allowed` rejects are left out.
    """
    blocks = []
    for a in part_sizes(shape.num_filters, chip.num_pes):
        for rows in part_sizes(shape.output_height, chip.num_pes // a):
            blocks += [(a, rows, columns) for columns in part_sizes(shape.output_width, chip.num_pes // (a * rows))]
    a, rows, columns = np.array(_allowed_blocks(blocks, allowed), dtype=np.int64).T
    tiles = ceiling(shape.output_height, rows) * ceiling(shape.output_width, columns)
    windows = shape.rows.read_in_strips(rows) * shape.columns.read_in_strips(columns)
    macs = shape.num_multiplications
    weights = shape.num_filters * shape.weights_per_output
    loads = _loads_without_sums(shape, chip)
    return Accesses(
        dram=loads,
        buffer={
            "filter": weights * shape.num_images * tiles + loads["filter"],
            "input_fill": loads["input"],
            "input": shape.num_images * shape.num_channels * windows * ceiling(shape.num_filters, a),
            "partial_sum": 2 * shape.num_outputs,
        },
        neighbour={"filter": macs, "input": macs, "partial_sum": shape.num_outputs},
        register_file={"partial_sum": 2 * macs},
    )


def input_stationary(shape: Shape, chip: Chip, allowed: Allowed) -> Accesses:
    """Return the accesses of every candidate (block and tile sizes) if each PE holds one input pixel.

    A PE is a processing element. A block has the pixels of some channels, in a rectangle of input rows and columns.
    Each weight is sent to all PEs that hold pixels of the weight's channel. Partial sums are sent from PE to PE and
    then to the buffer. Blocks that `allowed` rejects are left out.
    """
    blocks: list[tuple[int, ...]] = []
    for b in part_sizes(shape.num_channels, chip.num_pes):
        for rows in part_sizes(max(1, shape.rows.real), chip.num_pes // b):
            blocks += [
                (b, rows, columns) for columns in part_sizes(max(1, shape.columns.real), chip.num_pes // (b * rows))
            ]
    plane = shape.kernel_height * shape.kernel_width
    blocks = _allowed_blocks(blocks, allowed)
    (b, rows, columns), tiles = _with_tiles(
        shape, chip, blocks, lambda b, rows, columns, *_: (1, b * rows * columns, b * plane)
    )
    width = shape.output_width  # tiles are strips of output rows over the whole width
    count = shape.rows.blocks_in_strips(rows, tiles.e) * shape.columns.blocks_in_strips(columns, width)
    touched = shape.rows.outputs_of_blocks(rows, tiles.e) * shape.columns.outputs_of_blocks(columns, width)
    macs, loads = shape.num_multiplications, _loads(shape, tiles)
    weights = shape.num_filters * shape.weights_per_output
    rounds = ceiling(shape.num_channels, b)
    fills = loads["input"]
    return Accesses(
        dram=loads,
        buffer={
            "filter": weights * shape.num_images * count + loads["filter"],
            "input_fill": loads["input"],
            "input": fills,
            "partial_sum": 2 * shape.num_images * shape.num_filters * touched * rounds,
        },
        neighbour={"filter": macs, "input": fills, "partial_sum": macs},
        register_file={"input": macs + fills},
    )


def no_local_reuse(shape: Shape, chip: Chip, allowed: Allowed) -> Accesses:
    """Return the accesses of every candidate (block and tile sizes) if PEs (processing elements) hold no data.

    A block has some filters and some channels. For every product, the weight is read from the buffer. An input that is
    read from the buffer is sent to the PEs of all filters in the block. Blocks that `allowed` rejects are left out.
    """
    blocks = _filters_and_channels(shape, chip.num_pes, allowed)
    plane = shape.kernel_height * shape.kernel_width
    (a, b), tiles = _with_tiles(
        shape, chip, blocks, lambda a, b, n, rows: (a, a * b * plane + n * b * rows * shape.row_reads, 0)
    )
    macs, loads = shape.num_multiplications, _loads(shape, tiles)
    return Accesses(
        dram=loads,
        buffer={
            "filter": macs + loads["filter"],
            "input_fill": loads["input"],
            "input": macs // shape.num_filters * ceiling(shape.num_filters, a),
            "partial_sum": 2 * (macs // shape.num_channels) * ceiling(shape.num_channels, b),
        },
        neighbour={"filter": macs, "input": macs, "partial_sum": macs},
    )


BASELINES: dict[str, Callable[[Shape, Chip, Allowed], Accesses]] = {
    "weight-stationary": weight_stationary,
    "output-stationary": output_stationary,
    "input-stationary": input_stationary,
    "no-local-reuse": no_local_reuse,
}


def _allowed_blocks(blocks: Sequence[tuple[int, ...]], allowed: Allowed) -> list[tuple[int, ...]]:
    found = [block for block in blocks if allowed(*block)]
    if not found:
        raise ValueError("none of a dataflow's blocks is allowed")
    return found


def _filters_and_channels(shape: Shape, most: int, allowed: Allowed) -> list[tuple[int, ...]]:
    """Return the sizes (filters, channels) of the allowed blocks that have at most `most` planes of weights.

    A plane is the kernel of one filter and one channel. A block has filters x channels planes.
    """
    filters = part_sizes(shape.num_filters, most)
    return _allowed_blocks([(a, b) for a in filters for b in part_sizes(shape.num_channels, most // a)], allowed)


def _with_tiles(
    shape: Shape, chip: Chip, blocks: Sequence[tuple[int, ...]], needs: Callable[..., tuple[Amount, Amount, Amount]]
) -> tuple[tuple[Any, ...], Tiles]:
    """Return the sizes of blocks and tiles for all combinations that fit into the buffer.

    The PEs compute one block at a time. A tile is the outputs whose partial sums are in the buffer at the same time.
    `needs(*block, num_images, input_rows)` returns three numbers: the smallest number of filters of a tile, the words
    that the buffer holds besides partial sums, and the additional words per filter. A tile has all filters if their
    partial sums fit into the buffer. Otherwise, its number of filters is the largest multiple of the smallest number
    that fits.
    """
    sizes = [
        (n, e)
        for n in part_sizes(shape.num_images, shape.num_images)
        for e in part_sizes(shape.output_height, shape.output_height)
    ]
    choices = np.indices((len(blocks), len(sizes))).reshape(2, -1)
    block = np.array(blocks, dtype=np.int64)[choices[0]].T
    n, e = np.array(sizes, dtype=np.int64)[choices[1]].T
    least, fixed, per_filter = needs(*block, n, shape.rows.read(e))
    room = _buffer_words(chip) - fixed
    m = np.minimum(room // (n * e * shape.output_width + per_filter), shape.num_filters)
    fits = m >= least
    m = np.where(m == shape.num_filters, m, m // least * least)  # all filters, or a multiple of the block's filters
    if not fits.any():
        raise UsageError(
            f"no tile of this layer's partial sums fits into the buffer of chip {chip.name}; use a larger buffer"
        )
    return tuple(values[fits] for values in block), Tiles(m[fits], n[fits], e[fits])


def _loads(shape: Shape, tiles: Tiles) -> dict[str, Amount]:
    """Return the number of words that are read from or written to DRAM, by type of data.

    With the sizes n, e and m of `tiles`, weights are loaded once for every group of n images and e output rows, and
    inputs are loaded once for every group of m filters.
    """
    weights = shape.num_filters * shape.weights_per_output
    turns = ceiling(shape.num_images, tiles.n) * ceiling(shape.output_height, tiles.e)
    inputs = shape.num_images * shape.num_channels * shape.rows.real_in_strips(tiles.e) * shape.columns.real
    return {
        "filter": weights * turns,
        "input": inputs * ceiling(shape.num_filters, tiles.m),
        "partial_sum": shape.num_outputs,
    }


def _loads_without_sums(shape: Shape, chip: Chip) -> dict[str, Amount]:
    """Return the number of words that are read from or written to DRAM, by type of data, if the PEs hold partial sums.

    The buffer then holds either the inputs that some output rows need, or the weights of some filters. The result is
    for the choice that moves fewer words.
    """
    room = _buffer_words(chip)
    weights = shape.num_filters * shape.weights_per_output
    options = []
    for e in part_sizes(shape.output_height, shape.output_height):
        images = min(shape.num_images, room // (shape.num_channels * shape.rows.read(e) * shape.row_reads))
        if images:
            turns = ceiling(shape.output_height, e) * ceiling(shape.num_images, images)
            pixels = shape.num_images * shape.num_channels * int(shape.rows.real_in_strips(e)) * shape.columns.real
            options.append((weights * turns, pixels))
    if held := min(shape.num_filters, room // shape.weights_per_output):
        options.append((weights, shape.num_read_pixels * ceiling(shape.num_filters, held)))
    if not options:
        raise UsageError(
            f"neither the inputs of one row nor the weights of one filter fit into the buffer of chip "
            f"{chip.name}; use a larger buffer"
        )
    filters, inputs = min(options, key=sum)
    return {"filter": filters, "input": inputs, "partial_sum": shape.num_outputs}


def _buffer_words(chip: Chip) -> int:
    total = chip.buffer.banks * chip.buffer.bank_bytes + chip.buffer.filter_bytes
    return total * 8 // chip.word_bits
