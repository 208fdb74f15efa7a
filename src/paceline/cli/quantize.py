"""The command `quantize`: convert a trained model to int8, with optional fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import Json, Out, Trust

if TYPE_CHECKING:  # these modules import torch, which would slow down `--help`
    from rich.console import Console

    from paceline.recipe import Recipe
    from paceline.results.quantize import Stage
    from paceline.study.quantize.quantize import FineTuning
    from paceline.study.quantize.stages import StageListener

ORDER = 3

SOURCE, INTEGERS, TUNING = "Model and data", "Integers", "Fine-tuning"


def quantize(
    target: Annotated[
        str,
        typer.Argument(
            help="A run (its name in --out, a folder, or last), or a .safetensors file of weights.",
            metavar="RUN|CHECKPOINT",
        ),
    ],
    data: Annotated[
        str, typer.Option(help="Name of the data set (default: that of the run).", rich_help_panel=SOURCE)
    ] = "",
    data_dir: Annotated[str, typer.Option(help="Folder of the data files.", rich_help_panel=SOURCE)] = "",
    download: Annotated[
        bool, typer.Option("--download/--no-download", help="Download missing data files.", rich_help_panel=SOURCE)
    ] = True,
    model: Annotated[
        str, typer.Option(help="Model of a .safetensors file outside any run.", rich_help_panel=SOURCE)
    ] = "",
    test_samples: Annotated[
        int | None, typer.Option(help="Use only the first N test samples.", rich_help_panel=SOURCE, min=1)
    ] = None,
    calibration: Annotated[
        str,
        typer.Option(
            help="Methods to try for the range of activations, separated by commas: minmax, percentile, entropy, mse, "
            "or auto for all. The one with the smallest change of the outputs on training images is used.",
            rich_help_panel=INTEGERS,
        ),
    ] = "auto",
    percentile: Annotated[
        float, typer.Option(help="The percentile that --calibration percentile uses.", rich_help_panel=INTEGERS)
    ] = 99.99,
    symmetric: Annotated[
        bool,
        typer.Option(
            "--symmetric/--asymmetric", help="Symmetric or asymmetric ranges of activations.", rich_help_panel=INTEGERS
        ),
    ] = False,
    per_channel: Annotated[
        bool,
        typer.Option(
            "--per-channel/--per-tensor",
            help="One scale of the weights per output channel, or per tensor.",
            rich_help_panel=INTEGERS,
        ),
    ] = True,
    samples: Annotated[
        int, typer.Option(help="Number of training samples to calibrate with.", rich_help_panel=INTEGERS)
    ] = 512,
    keep_float: Annotated[
        bool,
        typer.Option(
            "--keep-float",
            help="Compute in float what has no integer form, instead of failing.",
            rich_help_panel=INTEGERS,
        ),
    ] = False,
    onnx: Annotated[
        bool | None,
        typer.Option(
            "--onnx/--no-onnx",
            help="Write ONNX files and measure them (default: if paceline\\[int8] is installed).",
            rich_help_panel=INTEGERS,
            show_default=False,
        ),
    ] = None,
    finetune: Annotated[
        int,
        typer.Option(
            help="Fine-tune for N steps, with int8 rounding simulated in float.", rich_help_panel=TUNING, metavar="N"
        ),
    ] = 0,
    strategy: Annotated[
        str, typer.Option(help="Strategy of fine-tuning (default: that of the run).", rich_help_panel=TUNING)
    ] = "",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of workers of fine-tuning (default: that of the run).", rich_help_panel=TUNING, min=1
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate of fine-tuning (default: a tenth of that of the run).", rich_help_panel=TUNING, min=0
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write the int8 ONNX file here.", metavar="FILE")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write an HTML report into the study's folder.")
    ] = True,
    trust: Trust = False,
    out: Out = Path("runs"),
    json_target: Json = "",
) -> None:
    """Quantize a trained model to int8 in stages, up to integer-only inference, and measure every stage's accuracy."""
    from paceline.cli.data import fetch_if_needed
    from paceline.cli.output import check_json_target, check_target, console_for, show_study, write_json
    from paceline.cli.study_session import interruptible
    from paceline.errors import UsageError
    from paceline.study.quantize import QuantizeOptions, find_source, load_source
    from paceline.study.quantize import quantize as run_study

    check_json_target(json_target)
    check_target("--output", str(output or ""))
    if not finetune and (strategy or workers is not None or lr is not None):
        raise UsageError("--strategy, --workers and --lr need --finetune; add --finetune N, or leave them out")
    if output is not None and onnx is False:
        raise UsageError("-o writes an ONNX file and conflicts with --no-onnx; leave one of the two out")
    request = QuantizeOptions(
        calibration=calibration,
        symmetric=symmetric,
        percentile=percentile,
        per_channel=per_channel,
        samples=samples,
        keep_float=keep_float,
        onnx=True if output is not None else onnx,
        finetune=finetune,
    )
    values = {"data.name": data, "data.dir": data_dir, "model.name": model, "data.test_samples": test_samples}
    changes = {key: value for key, value in values.items() if value}
    if not download:
        changes["data.download"] = False
    source = find_source(target, out, changes, trust=trust)
    console = console_for(json_target)
    fetch_if_needed(source.recipe.data, console)
    loaded = load_source(source)
    tuning = make_tuning(source.recipe, steps=finetune, strategy=strategy, workers=workers, lr=lr) if finetune else None
    console.print(
        f"{source.name}: {source.recipe.model.name} on {source.recipe.data.name}, {len(loaded.data.test):,} test "
        f"samples; {min(samples, len(loaded.data.train)):,} of {len(loaded.data.train):,} training samples to "
        "calibrate on",
        markup=False,
    )
    with interruptible(), _stage_progress(console) as listener:
        study, folder = run_study(loaded, request, out=out, listener=listener, output=output, tuning=tuning)
    show_study(console, study, folder, with_report=report)
    write_json(study, json_target)


@contextmanager
def _stage_progress(console: Console) -> Iterator[StageListener]:
    """Yield a listener that shows a bar for the stage being evaluated, and prints a line for each finished stage."""
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from paceline.present.numbers import accuracy
    from paceline.study.quantize.stages import StageListener

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("test samples"))
    with Progress(*columns, console=console, refresh_per_second=4, transient=True) as progress:
        bar = progress.add_task("", total=None, visible=False)

        def move(name: str, done: int, total: int) -> None:
            progress.update(bar, description=escape(name), completed=done, total=total, visible=True)

        def end(stage: Stage) -> None:
            progress.update(bar, visible=False)
            score = "" if stage.test_accuracy is None else f"{accuracy(stage.test_accuracy)} "
            line = f"{stage.name}: {score}in {stage.evaluation_s:.1f} s"
            progress.console.print(line, style="dim", markup=False)

        yield StageListener(move, end)


def register(app: typer.Typer) -> None:
    app.command()(quantize)


def make_tuning(recipe: Recipe, *, steps: int, strategy: str, workers: int | None, lr: float | None) -> FineTuning:
    """Return the settings of the fine-tuning that the options request. Raise UsageError if the options are invalid."""
    from paceline.cli.study_session import launcher_for, start_workers
    from paceline.launch.base import LaunchRequest
    from paceline.recipe import ClusterConfig
    from paceline.study.entries import make_entry, settle_comm
    from paceline.study.preflight import without_cluster
    from paceline.study.quantize.finetune import finetune_recipe
    from paceline.study.quantize.quantize import FineTuning

    launcher = launcher_for(LaunchRequest(), ClusterConfig(), single_process="quantize")
    values: dict[str, str | int | None] = {"strategy": strategy or None, "workers": workers}
    changes = {key: value for key, value in values.items() if value}
    if workers and recipe.train.worker_batch_size:
        changes["train.batch_size"] = recipe.batch_size  # keeps the global batch
    tuned = settle_comm(without_cluster(finetune_recipe(recipe.replace(changes), steps=steps, lr=lr)))
    entry = make_entry(tuned.strategy, tuned)
    return FineTuning(tuned, entry, lambda: start_workers(entry.num_processes, launcher))
