"""The command `dataflow`: simulate a CNN accelerator with row-stationary dataflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.options import Json, Runs, Trust

ORDER = 7

dataflow = typer.Typer(
    help="Simulate a row-stationary CNN accelerator: one convolution cycle by cycle, or the cost of a network.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

CONV_HELP = """Run one convolution on an array of processing elements (PEs) and print every cycle.

Models of a PE: serial (a single PE computes everything), single-alu (each PE does one operation at a time), pipelined (multiplier and adder work in parallel), mac (fused multiply-add: additions take no time). In all models loading takes no time, the first product of a PE initialises its accumulator, and one PE of each column adds up the partial sums of the column."""  # noqa: E501

Animate = Annotated[
    str, typer.Option("--animate", help="Write an HTML page that animates the cycles.", metavar="FILE.html")
]
Chart = Annotated[str, typer.Option("--chart", help="Write an HTML page of charts.", metavar="FILE.html")]


@dataflow.command(help=CONV_HELP)
def conv(
    given_input: Annotated[
        str,
        typer.Option(
            "--input",
            help="Rows such as '1 3 9; 4 5 6; 7 4 9', nested JSON, random:3x8x8, or a file (.npy, .csv, .json).",
            metavar="MATRIX",
        ),
    ],
    kernel: Annotated[str, typer.Option("--kernel", help="The filters, in the same formats.", metavar="MATRIX")],
    model: Annotated[
        str, typer.Option("--model", help="Model of a PE: serial, single-alu, pipelined or mac.", metavar="NAME")
    ] = "single-alu",
    pes: Annotated[
        str,
        typer.Option("--pes", help="Rows x columns of the PE array (default: as large as needed).", metavar="12x14"),
    ] = "",
    stride: Annotated[
        str, typer.Option("--stride", help="Stride: 2, or 2x1 (vertical x horizontal).", metavar="2x1")
    ] = "1",
    padding: Annotated[
        str,
        typer.Option(
            "--padding",
            help="Rows and columns of zeros around the input: 1, or 1x2 (vertical x horizontal).",
            metavar="1x2",
        ),
    ] = "0",
    channels: Annotated[
        int | None, typer.Option("--channels", help="Split the rows of plain matrices into N channels.")
    ] = None,
    filters: Annotated[
        int | None, typer.Option("--filters", help="Split the rows of a plain kernel into N filters.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Split the rows of a plain input into N images.")] = None,
    multiply_cycles: Annotated[
        int, typer.Option("--multiply-cycles", help="Duration of a multiplication in cycles.")
    ] = 1,
    add_cycles: Annotated[
        int, typer.Option("--add-cycles", help="Duration of an addition in cycles (0 in model mac).")
    ] = 1,
    cycles: Annotated[int, typer.Option("--cycles", help="Number of cycles to print; --trace writes all.", min=0)] = 40,
    trace: Annotated[
        str,
        typer.Option("--trace", help="Write all events to a file: .csv, .json, or .vcd for GTKWave.", metavar="FILE"),
    ] = "",
    animate: Animate = "",
    chart: Chart = "",
    json_target: Json = "",
) -> None:
    from paceline.cli.output import check_different, check_json_target, check_target, console_for, write_json
    from paceline.dataflow.matrices import is_file_name, make_operands, read_matrix
    from paceline.dataflow.shape import parse_array, parse_pair
    from paceline.dataflow.simulation_results import conv_result
    from paceline.dataflow.simulator import Simulation
    from paceline.dataflow.timing import Timing
    from paceline.dataflow.trace_export import check_trace, check_trace_file, write_trace
    from paceline.present.studies.dataflow import check_conv_charts, conv_page, show_conv

    check_json_target(json_target)
    if trace:
        check_trace_file(trace)
        check_target("--trace", trace)
    check_target("--animate", animate, endings=(".html",))
    check_target("--chart", chart, endings=(".html",))
    targets = {"--trace": trace, "--animate": animate, "--chart": chart, "--json": json_target}
    check_different(targets, inputs=[name for name in (given_input, kernel) if is_file_name(name)])
    operands = make_operands(
        read_matrix(given_input, "--input"),
        read_matrix(kernel, "--kernel"),
        stride=parse_pair(stride, "--stride"),
        padding=parse_pair(padding, "--padding"),
        num_channels=channels,
        num_filters=filters,
        num_images=batch,
    )
    timing = Timing(model=model, multiply_cycles=multiply_cycles, add_cycles=add_cycles)
    simulation = Simulation.of(operands, timing, parse_array(pes) if pes else None)
    if trace:
        check_trace(simulation, trace)
    if animate:
        from paceline.present.animation import check_animation, write_animation

        check_animation(simulation)
    if chart:
        check_conv_charts(simulation)
    console = console_for(json_target)
    show_conv(console, simulation, num_cycles=cycles)
    if trace:
        count = write_trace(simulation, trace)
        console.print(f"trace  {trace} ({count:,} events)", markup=False, soft_wrap=True)
    if animate:
        console.print(f"page   {write_animation(simulation, animate)}", markup=False, soft_wrap=True)
    if chart:
        from paceline.present.html import write_page

        console.print(f"chart  {write_page(conv_page(simulation), Path(chart))}", markup=False, soft_wrap=True)
    if json_target:
        write_json(conv_result(simulation), json_target)


@dataflow.command()
def network(
    name: Annotated[
        str,
        typer.Argument(
            help="alexnet, vgg16, a built-in model, file.py:factory, or a stored run or quantization study.",
            metavar="NETWORK",
        ),
    ],
    chip: Annotated[
        str,
        typer.Option(
            "--chip",
            help="Name of a built-in chip, or a TOML file; `paceline dataflow chip` prints one that you can change.",
            metavar="CHIP",
        ),
    ] = "eyeriss",
    batch: Annotated[int, typer.Option("--batch", help="Images in a batch.", min=1, max=100_000)] = 4,
    input_shape: Annotated[
        str, typer.Option("--input-shape", help="Input shape of the model, such as 3x32x32.", metavar="CxHxW")
    ] = "",
    linear: Annotated[
        bool, typer.Option("--linear", help="Include the linear layers of a model, as convolutions of one pixel.")
    ] = False,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="Quantity that the mapping of each layer minimises: dram-delay, energy-delay, energy or time.",
            metavar="NAME",
        ),
    ] = "dram-delay",
    others: Annotated[
        bool, typer.Option("--others/--no-others", help="Also compute the energy of other dataflows on this chip.")
    ] = True,
    chart: Chart = "",
    runs: Runs = Path("runs"),
    trust: Trust = False,
    json_target: Json = "",
) -> None:
    """Compute the mapping, time, memory accesses and energy of every convolution of a network."""
    from paceline.cli.output import check_different, check_json_target, check_target, console_for, write_json
    from paceline.dataflow.chips import load_chip
    from paceline.dataflow.matrices import parse_sides
    from paceline.dataflow.network_cost import analyse, read_network
    from paceline.dataflow.row_stationary import check_objective
    from paceline.present.studies.dataflow import network_page
    from paceline.present.terminal import say, show

    check_json_target(json_target)
    check_target("--chart", chart, endings=(".html",))
    check_different({"--chart": chart, "--json": json_target}, inputs=[chip, name.partition(":")[0]])
    check_objective(objective)
    chip_values = load_chip(chip)
    sides = parse_sides(input_shape) if input_shape else None
    title, layers = read_network(
        name, chip_values, num_images=batch, input_shape=sides, with_linear=linear, runs=runs, trust=trust
    )
    result = analyse(layers, chip_values, network=title, batch=batch, objective=objective, with_baselines=others)
    page = network_page(result)
    if chart:  # written before printing, because a closed pipe interrupts printing
        from paceline.present.html import write_page

        write_page(page, Path(chart))
    console = console_for(json_target)
    say(console, page.intro[0])
    show(console, page)
    if chart:
        console.print(f"chart  {chart}", markup=False, soft_wrap=True)
    write_json(result, json_target)


@dataflow.command()
def chip(
    name: Annotated[str, typer.Argument(help="Name of a built-in chip.", metavar="[CHIP]")] = "eyeriss",
) -> None:
    """Print a chip as TOML, to change and use with --chip: paceline dataflow chip > mine.toml."""
    from paceline.dataflow.chips import chip_text

    typer.echo(chip_text(name), nl=False)


def register(app: typer.Typer) -> None:
    app.add_typer(dataflow, name="dataflow")
