"""Common parts of the commands that run studies: options, start of workers, progress, resuming, and output."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from paceline.cli.options import Json, Out, Trust, Verbose, keyword_parameter, parameters_without, with_signature
from paceline.cli.output import check_json_target, console_for, print_limits, show_study, write_json
from paceline.errors import RunError, UsageError
from paceline.interrupts import require_clean_up
from paceline.launch.base import LaunchRequest

if TYPE_CHECKING:  # these modules import torch, which would slow down `--help`
    from paceline.launch.base import Launcher, WorkerPool
    from paceline.recipe import ClusterConfig, DataConfig, Recipe
    from paceline.results import StudyResult
    from paceline.study.base import Study, StudyListener
    from paceline.study.engine import StudyOutcome

Resume = Annotated[
    str,
    typer.Option("--resume", help="Resume this study; finished runs are not run again.", metavar="FOLDER"),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start a new study instead of resuming an unfinished one.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML report into the study's folder.")]

MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Serve Prometheus metrics on this port while the command runs; 0 picks a free port.",
        rich_help_panel="Measuring",
        min=0,
        max=65535,
    ),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", help="Address to serve metrics on.", rich_help_panel="Measuring")
]

# Options and their defaults, by parameter name.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "resume": (Resume, ""),
    "fresh": (Fresh, False),
    "trust": (Trust, False),
    "report": (Report, True),
    "out": (Out, Path("runs")),
    "json_target": (Json, ""),
    "verbose": (Verbose, False),
    "metrics_port": (MetricsPort, None),
    "metrics_host": (MetricsHost, "127.0.0.1"),
}


def session_options(
    *, leave_out: tuple[str, ...] = (), takes_hosts: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds to a command the options that all studies share.

    The command gets the options' values as a `StudySession`, in the argument `session`.
    """
    options = {name: option for name, option in OPTIONS.items() if name not in leave_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in options}
            launch = arguments.pop("launch") if takes_hosts else LaunchRequest()
            command(session=StudySession(launch, **values), **arguments)

        parameters = [keyword_parameter(name, *option) for name, option in options.items()]
        if takes_hosts:  # the decorator `host_options` passes `launch`
            parameters.append(keyword_parameter("launch", Any))
        return with_signature(wrapper, [*parameters_without("session", command), *parameters])

    return decorate


@dataclass(frozen=True)
class StudySession:
    """Values of the options that all studies share. Its methods run a study according to these options."""

    request: LaunchRequest
    resume: str = ""
    fresh: bool = False
    trust: bool = False  # whether --resume may execute code outside of the current folder that the study names
    report: bool = True
    out: Path = Path("runs")
    json_target: str = ""
    verbose: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        check_json_target(self.json_target)

    @functools.cached_property
    def console(self) -> Console:
        return console_for(self.json_target, is_main=self.launcher().is_main)

    def fetch(self, data: DataConfig) -> None:
        """If `data` is a published data set (MNIST or CIFAR-10) and allows downloads, download the missing files."""
        from paceline.cli.data import fetch_if_needed

        fetch_if_needed(data, console_for(self.json_target))

    def print_limits(self, recipe: Recipe) -> None:
        """With --verbose, print all time limits that follow from the recipe's timeout."""
        if self.verbose:
            print_limits(self.console, recipe.timeout_s)

    def prepare_recipe(self, recipe: Recipe) -> Recipe:
        """Download missing data. Return the recipe, with a chosen comm (communication backend) in place of `auto`."""
        from paceline.study.entries import settle_comm

        self.print_limits(recipe)
        self.fetch(recipe.data)
        return settle_comm(recipe, self.num_hosts)

    def refuse_with_resume(self, **is_given: bool) -> None:
        """Raise UsageError if --resume is combined with an option of the command itself.

        A resumed study uses the stored values of these options. `is_given` maps each option to whether it was given.
        """
        names = [f"--{name.replace('_', '-')}" for name, given in is_given.items() if given]
        if self.resume and names:
            raise UsageError(f"--resume uses the options of the stored study; leave out {', '.join(names)}")

    @property
    def num_hosts(self) -> int:
        return self.launcher().describe().num_hosts

    def launcher(self, cluster: ClusterConfig | None = None, *, single_process: str = "") -> Launcher:
        """Return the launcher that the options and the cluster select."""
        return launcher_for(self.request, cluster or self.request.cluster, single_process=single_process)

    def place_words(self, cluster: ClusterConfig) -> str:
        """Return where workers run, with a comma in front: `, on HOST1, HOST2`. Return "" for plain local processes."""
        words = self.launcher(cluster).describe().words
        return f", {words}" if words else ""

    def launch(self, num_processes: int, cluster: ClusterConfig) -> AbstractContextManager[WorkerPool]:
        """Return a context manager that starts worker processes with the selected launcher, and yields their pool."""
        return self.launcher(cluster).open(num_processes)

    @contextmanager
    def listener(self, progress: StudyListener) -> Iterator[StudyListener]:
        """Yield `progress` or, if --metrics-port is given, a listener that also updates Prometheus metrics.

        The main process serves the metrics while the `with` block runs. Other processes always yield `progress`.
        """
        from paceline.cli.metrics import serve_metrics

        if self.metrics_port is None or not self.launcher().is_main:
            yield progress
        else:
            with serve_metrics(self.metrics_port, self.metrics_host, self.console, progress) as listener:
                yield listener

    def run(
        self,
        kind: type[Study],
        prepare: Callable[[], Study],
        *,
        recipe: Recipe | None = None,
        own_keys: tuple[str, ...] = (),
        introduce: Callable[[Console, Any, str], None],
        has_bar_per_entry: bool = False,
        on_stage: Callable[[Any], str] | None = None,
    ) -> StudyOutcome | None:
        """Run a study, show its result, and return the outcome, or None if another process shows the result.

        `prepare` makes the study that the options ask for. With --resume, the stored study runs instead. In that case,
        the values that the user gave in `recipe` must equal the stored ones, except those of `own_keys`, which the
        command sets. `introduce` prints a description of the study before it runs. `on_stage` returns a line about a
        finished stage (set of runs). `has_bar_per_entry` shows one progress bar per strategy instead of one for all
        runs.
        """
        from paceline.cli.progress import StudyProgress
        from paceline.study.engine import run_study

        study, folder = self.choose(kind, prepare, recipe, own_keys)
        introduce(self.console, study, self.place_words(study.recipe.cluster))
        progress = StudyProgress(self.console, has_bar_per_entry=has_bar_per_entry, on_stage=on_stage)
        with interruptible(), self.listener(progress) as listener, progress:
            outcome = run_study(study, self.launch, listener, self.out, resume=folder)
        if outcome is not None:
            show_study(self.console, outcome.result, outcome.folder, with_report=self.report)
            write_json(outcome.result, self.json_target)
        return outcome

    def choose(
        self,
        kind: type[Study],
        prepare: Callable[[], Study],
        recipe: Recipe | None = None,
        own_keys: tuple[str, ...] = (),
    ) -> tuple[Study, Path | None]:
        """Return the study to run, and the folder in which to resume it (None for a new study)."""
        from paceline.study.engine import find_unfinished

        if self.resume and self.fresh:
            raise UsageError("--resume and --fresh conflict; give one of the two")
        if self.trust and not self.resume:
            raise UsageError("--trust needs --resume: code that you name on the command line is trusted already")
        launcher = self.launcher()
        if not launcher.starts_all:
            if self.resume:
                raise UsageError(f"--resume needs one process that starts all workers; leave out {launcher.because}")
            return prepare(), None
        if self.resume:
            return self._read_resumed(kind, recipe, own_keys)
        study = prepare()
        folder = None if self.fresh else find_unfinished(study, self.out)
        return study, folder if folder is not None and self._confirm_resume(folder) else None

    def read_unfinished_run(self, name: str, given: Recipe) -> tuple[Path, Recipe]:
        """Return the folder of the run to resume, and its recipe.

        Values in `given` may differ from the stored recipe only if they do not affect the result; then they apply.
        """
        from paceline.recipe import DEFAULT_RECIPE, KEYS_WITHOUT_EFFECT, load_recipe
        from paceline.runs import folder_of
        from paceline.runs.locks import check_unlocked
        from paceline.study.resumption import read_unfinished
        from paceline.trusted_code import check_trusted

        launcher = self.launcher()
        if not launcher.starts_all:
            raise UsageError(f"--resume needs one process that starts all workers; leave out {launcher.because}")
        folder = folder_of(name, self.out)
        ours, usual = given.to_dict(), load_recipe(DEFAULT_RECIPE).to_dict()
        free = KEYS_WITHOUT_EFFECT - {"name", "description", "strategies"}
        changes = {key: _at(ours, key) for key in free if _at(ours, key) != _at(usual, key)}
        recipe = read_unfinished(folder, changes)
        check_unlocked(folder)
        _refuse_other_recipe(given, recipe, tuple(KEYS_WITHOUT_EFFECT))
        check_trusted(recipe.to_dict(), f"run {folder.name!r}", folder=folder, typed=ours, trust=self.trust)
        return folder, recipe

    def _read_resumed(self, kind: type[Study], recipe: Recipe | None, own_keys: tuple[str, ...]) -> tuple[Study, Path]:
        """Read the study that --resume names, and check that the command can continue it."""
        from paceline.recipe import Recipe
        from paceline.results import DONE
        from paceline.runs import folder_of
        from paceline.study.study_folder import read_study, request_of
        from paceline.trusted_code import check_trusted

        folder = folder_of(self.resume, self.out)
        stored = read_study(folder)
        if stored.study != kind.name:
            raise UsageError(f"{self.resume!r} is a {stored.study}, not a {kind.name}; --resume needs a {kind.name}")
        if stored.status == DONE and not getattr(stored, "failed", None):
            raise UsageError(f"{self.resume!r} is finished; `paceline runs show {folder.name}` shows it")
        if recipe is not None:
            _refuse_other_recipe(recipe, Recipe.from_dict(stored.recipe), own_keys)
        # Results quote the values of the request, and error messages may quote paths.
        request = request_of(stored, (*kind.request_keys, "recipe"))
        typed = recipe.to_dict() if recipe is not None else ()
        check_trusted(request, f"study {folder.name!r}", folder=folder, typed=typed, trust=self.trust)
        self.console.print(f"Resuming {folder} ({_progress_words(stored)}).", markup=False, soft_wrap=True)
        return kind.from_stored(stored, num_hosts=self.num_hosts), folder

    def _confirm_resume(self, folder: Path) -> bool:
        """Ask the user whether to resume the study in `folder`. Without a terminal to ask in, return True."""
        from paceline.study.study_folder import read_study

        words = f"This study was started before and did not finish ({_progress_words(read_study(folder))}): {folder}"
        if sys.stdin.isatty():
            self.console.print(words, markup=False, soft_wrap=True)
            return typer.confirm("Resume it?", default=True, err=self.console.stderr)
        self.console.print(f"{words}. Resuming it; --fresh starts a new one.", markup=False, soft_wrap=True)
        return True


def _progress_words(stored: StudyResult) -> str:
    num_points = getattr(stored, "num_points", None)
    measured = len(stored.results)
    return f"{measured} of {num_points} points measured" if num_points else f"{measured} rows measured"


def _refuse_other_recipe(given: Recipe, stored: Recipe, own_keys: tuple[str, ...]) -> None:
    """Raise UsageError if a value that the user gave for a recipe key differs from the value in the resumed study.

    A key whose value equals that of the default recipe is treated as not given. `own_keys` are not compared.
    """
    from paceline.recipe import DEFAULT_RECIPE, load_recipe, recipe_keys

    ours, theirs, usual = given.to_dict(), stored.to_dict(), load_recipe(DEFAULT_RECIPE).to_dict()
    for key, _ in recipe_keys():
        if key not in own_keys and _at(ours, key) not in (_at(theirs, key), _at(usual, key)):
            raise UsageError(f"--resume uses the stored recipe, and {key} differs from it; leave {key} out")


def _at(values: Mapping[str, Any], key: str) -> Any:
    section, dot, name = key.partition(".")
    return values.get(section, {}).get(name) if dot else values.get(section)


def launcher_for(launch: LaunchRequest, cluster: ClusterConfig, *, single_process: str = "") -> Launcher:
    """Return the launcher for the options and the cluster. Raise UsageError if they are invalid.

    `single_process` is the name of a command that must start all workers itself, or empty for other commands. Such a
    command cannot run under torchrun or with --nnodes.
    """
    from paceline.launch.registry import find_launcher

    launcher = find_launcher(replace(launch, cluster=cluster))
    if single_process and not launcher.starts_all:
        raise UsageError(
            f"{single_process} starts all workers itself: run it in one process without {launcher.because}; for "
            "several hosts, add --hosts"
        )
    launcher.check()
    return launcher


@contextmanager
def start_workers(num_processes: int, launcher: Launcher) -> Iterator[WorkerPool]:
    """Yield a pool of new worker processes. After the `with` block, stop them and their emulated cluster, if any.

    Ctrl-C in the block raises RunError.
    """
    with interruptible(), launcher.open(num_processes) as pool:
        yield pool


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM or SIGHUP in the `with` block into a RunError with a one-sentence message."""
    require_clean_up()
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
