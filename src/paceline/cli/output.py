"""Output of commands: the console, results as JSON, and checks of output files before any work starts."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from paceline.errors import RunError, UsageError
from paceline.limits import Limits
from paceline.output_files import atomic_file, is_stream
from paceline.present.numbers import counted
from paceline.present.terminal import say, show
from paceline.runs import nonfinite_to_none
from paceline.text import plain_text, wrapped

if TYPE_CHECKING:  # these modules import torch, which would slow down `--help`
    from paceline.recipe import Recipe
    from paceline.results import RunResult, StudyResult
    from paceline.study.entries import Entry
    from paceline.study.preflight import ModelFacts


class PlainConsole(Console):
    """A console that removes control characters from strings, tables and live displays."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, quiet=quiet, soft_wrap=soft_wrap, highlight=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], str) and not options.get("soft_wrap", self.soft_wrap):
            objects = (wrap_long(objects[0], self.width),)
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        # Text is cleaned after layout, so that columns stay aligned and the cleaned text is not parsed as markup.
        for segment in super().render(renderable, options):
            if segment.control:  # a cursor movement of the live display
                yield segment
            else:
                yield segment._replace(text=plain_text(segment.text, keep_lines=True))


def print_limits(console: Console, timeout_s: float) -> None:
    """Print one line for every time limit that follows from --timeout, and for the constant ones."""
    for limit in Limits(timeout_s).table():
        console.print(str(limit), markup=False, soft_wrap=True)


def wrap_long(text: str, width: int) -> str:
    """Wrap text that is longer than `width`. Return shorter text unchanged, including repeated spaces."""
    return "\n".join(wrapped(text, width)) if len(text) > width else text


def console_for(json_target: str, *, is_main: bool = True) -> Console:
    """Return a console on standard output, or on standard error if `--json -` uses standard output.

    If `is_main` is false, the console prints nothing.
    """
    return PlainConsole(stderr=json_target == "-", quiet=not is_main)


def write_json(value: Any, target: str) -> None:
    """Write a result as JSON to the file of --json. `-` is standard output, and an empty name writes nothing."""
    if not target:
        return
    text = json.dumps(nonfinite_to_none(value), indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        with atomic_file(target) as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"{target!r} cannot be written: {error.strerror}") from None


def show_study(console: Console, result: StudyResult, folder: Path, *, with_report: bool) -> None:
    """Print the result of a study that just ran. If `with_report`, write an HTML report into `folder`."""
    from paceline.present import page_in_memory  # imports torch, which would slow down `--help`

    page = page_in_memory(result, folder)
    show(console, page)
    say(console, f"study   {folder}", is_unbroken=True)
    if with_report and page.tables:
        from paceline.present.html import write_page

        say(console, f"report  {write_page(page, folder / 'report.html')}", is_unbroken=True)


def show_run(console: Console, result: RunResult, folder: Path) -> None:
    """Print the result of a run that just ended, and the name of its folder."""
    from paceline.present import page_in_memory

    show(console, page_in_memory(result, folder))
    say(console, f"run             {folder}", is_unbroken=True)


def model_and_data(recipe: Recipe, facts: ModelFacts) -> str:
    """Return a description of recipe, model and data, for the line that is printed before a run or study starts."""
    samples = f"{facts.num_train_samples:,} samples"
    if facts.skipped:
        first = facts.skipped[0]
        samples += f"; {counted(len(facts.skipped), 'bad sample')} left out, such as {first.name}: {first.reason}"
    return f"{recipe.name}: {recipe.model.name} ({facts.num_parameters:,} parameters) on {recipe.data.name} ({samples})"


def length_of(recipe: Recipe, facts: ModelFacts) -> str:
    """Return the length of a run: `100 epochs of 1 step` if it trains whole epochs, else `50 steps`."""
    epochs = recipe.train.epochs
    if epochs is None or epochs * facts.steps_per_epoch != facts.total_steps:
        return counted(facts.total_steps, "step")
    return f"{counted(epochs, 'epoch')} of {counted(facts.steps_per_epoch, 'step')}"


def comm_of(recipe: Recipe, num_processes: int, where: str) -> str:
    """Return the comm, with the library that comm `torch` uses, if it is known: `comm torch (gloo)`.

    `num_processes` is the largest number of processes that train together. `where` says where they run, or is empty for
    local processes. On GPUs, only hosts with a GPU for each process use nccl.
    """
    library = ""
    if recipe.comm == "torch" and recipe.device == "cpu":
        library = " (gloo)"
    elif recipe.comm == "torch" and not where:
        import torch

        library = " (nccl)" if torch.cuda.device_count() >= num_processes else ""
    return f"comm {recipe.comm}{library}"


def processes_of(entry: Entry) -> str:
    """Return a description of a strategy's processes, such as `4 workers and 1 server (rank 4)`."""
    workers = counted(entry.num_workers, "worker")
    if not entry.num_servers:
        return workers
    first, last = entry.num_workers, entry.num_processes - 1
    ranks = f"1 server (rank {first})" if first == last else f"{entry.num_servers} servers (ranks {first} to {last})"
    return f"{workers} and {ranks}"


def check_json_target(target: str) -> None:
    """Raise UsageError if the file of --json cannot be written. Commands call this before they measure."""
    if target != "-":
        check_target("--json", target)


def check_target(option: str, target: str, *, endings: tuple[str, ...] = ()) -> None:
    """Raise UsageError if an output file has none of the endings, or if it cannot be written.

    A file cannot be written if it is a folder, if its folder is missing or not writable, or if it is a link that leads
    back to itself. An empty name is accepted.
    """
    if not target:
        return
    if endings and not target.endswith(endings):
        raise UsageError(f"{option} {target!r}: name a file that ends in {' or '.join(endings)}")
    real = Path(os.path.realpath(target))
    if real.is_symlink():
        raise UsageError(f"{option} {target!r} is a link that leads back to itself")
    if is_stream(target) and not Path(target).is_dir():
        if not os.access(target, os.W_OK):
            raise UsageError(f"{option} {target!r} cannot be written")
        return
    if not real.parent.is_dir():
        named = real.parent if Path(target).is_symlink() else Path(target).parent
        raise UsageError(f"{option} {target!r}: the folder {str(named)!r} does not exist")
    if Path(target).is_dir():
        raise UsageError(f"{option} {target!r} is a folder; name a file in it")
    try:
        tempfile.TemporaryFile(dir=real.parent).close()  # os.access gives wrong answers in /proc and on read-only disks
    except OSError:
        raise UsageError(f"{option} {target!r}: the folder cannot be written") from None


def check_different(targets: dict[str, str], *, inputs: Sequence[str] = ()) -> None:
    """Raise UsageError if an output file is also an input, or if two outputs are the same file."""
    files = [("the input", name) for name in inputs if Path(name).is_file()]
    files += [(option, name) for option, name in targets.items() if name not in ("", "-") and not is_stream(name)]
    options: dict[str, str] = {}
    for option, name in files:
        first = options.setdefault(os.path.realpath(name), option)
        if first != option:
            raise UsageError(f"{first} and {option} are the same file, {name!r}")
