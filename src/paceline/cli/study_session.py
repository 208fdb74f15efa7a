"""Options, launching, progress, resuming and output of all commands that measure."""

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

from paceline.cli.launch_options import keyword, offering, own_parameters
from paceline.cli.options import Json, MetricsHost, MetricsPort, Out, check_json_target, console_for, write_json
from paceline.errors import RunError, UsageError

if TYPE_CHECKING:  # these need torch, which --help does without
    from paceline.launch.base import Launcher, LaunchRequest, WorkerPool
    from paceline.recipe import ClusterConfig, DataConfig, Recipe
    from paceline.results import StudyResult
    from paceline.study.base import Study, StudyListener
    from paceline.study.engine import StudyOutcome

Resume = Annotated[
    str,
    typer.Option("--resume", help="Resume this study; finished runs are not run again.", metavar="FOLDER"),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start a new study even if the same one is unfinished.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write an HTML report into the study's folder.")]

OPTIONS: dict[str, tuple[Any, Any]] = {
    "resume": (Resume, ""),
    "fresh": (Fresh, False),
    "report": (Report, True),
    "out": (Out, Path("runs")),
    "json_target": (Json, ""),
    "metrics_port": (MetricsPort, None),
    "metrics_host": (MetricsHost, "127.0.0.1"),
}


def session_options(
    *, leave_out: tuple[str, ...] = (), takes_hosts: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that all studies have; it receives a `session` instead of them."""
    offered = {name: option for name, option in OPTIONS.items() if name not in leave_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            given = {name: arguments.pop(name) for name in offered}
            launch = arguments.pop("launch") if takes_hosts else _request()
            command(session=StudySession(launch, **given), **arguments)

        parameters = [keyword(name, annotation, default) for name, (annotation, default) in offered.items()]
        if takes_hosts:  # host_options fills it in
            parameters.append(keyword("launch", Any))
        return offering(wrapper, [*own_parameters(command, but="session"), *parameters])

    return decorate


@dataclass(frozen=True)
class StudySession:
    """One command that measures: its launcher, its output folder and its reports."""

    request: LaunchRequest
    resume: str = ""
    fresh: bool = False
    report: bool = True
    out: Path = Path("runs")
    json_target: str = ""
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        check_json_target(self.json_target)

    @functools.cached_property
    def console(self) -> Console:
        return console_for(self.json_target, is_main=self.launcher().is_main)

    def fetch(self, data: DataConfig) -> None:
        """Download published data that is missing."""
        from paceline.cli.data import fetch_if_needed

        fetch_if_needed(data, console_for(self.json_target))

    def settled(self, recipe: Recipe) -> Recipe:
        """Fetch the data, and return the recipe with the comm that `auto` selects."""
        from paceline.study.entries import settle_comm

        self.fetch(recipe.data)
        return settle_comm(recipe, self.num_hosts)

    def refuse_beside_resume(self, **given: bool) -> None:
        """Refuse options of the command beside --resume, which uses those of the stored study."""
        names = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
        if self.resume and names:
            raise UsageError(f"--resume uses the options of the stored study; leave out {', '.join(names)}")

    @property
    def num_hosts(self) -> int:
        return self.launcher().describe().num_hosts

    def launcher(self, cluster: ClusterConfig | None = None, *, only_once: str = "") -> Launcher:
        """Return the launcher that the options and the cluster select."""
        return launcher_for(self.request, cluster or self.request.cluster, only_once=only_once)

    def where(self, cluster: ClusterConfig) -> str:
        """The placement of workers, as the end of a sentence; empty for plain processes of this host."""
        words = self.launcher(cluster).describe().words
        return f", {words}" if words else ""

    def launch(self, num_processes: int, cluster: ClusterConfig) -> AbstractContextManager[WorkerPool]:
        """Start workers with the selected launcher."""
        return self.launcher(cluster).open(num_processes)

    @contextmanager
    def followed(self, bars: StudyListener) -> Iterator[StudyListener]:
        """The listeners of a command: progress, and metrics if requested."""
        from paceline.cli.metrics import ListenerGroup, serving

        with serving(self.metrics_port, self.metrics_host, self.console, is_main=self.launcher().is_main) as followers:
            yield ListenerGroup([bars, *followers])

    def run(
        self,
        kind: type[Study],
        prepare: Callable[[], Study],
        *,
        asked: Recipe | None = None,
        own_keys: tuple[str, ...] = (),
        introduce: Callable[[Console, Any, str], None],
        has_bar_per_entry: bool = False,
        on_stage: Callable[[Any], str] | None = None,
    ) -> StudyOutcome | None:
        """Run a study and show its result; None where another process reports.

        `prepare` makes the requested study. With --resume the stored study runs instead, and options must not
        have changed the recipe (`asked`), except for keys that the command sets itself. `on_stage` describes a finished
        stage in one line.
        """
        from paceline.cli.progress import StudyProgress
        from paceline.study.engine import run_study

        study, folder = self.choose(kind, prepare, asked, own_keys)
        introduce(self.console, study, self.where(study.recipe.cluster))
        bars = StudyProgress(self.console, has_bar_per_entry=has_bar_per_entry, on_stage=on_stage)
        with interruptible(), self.followed(bars) as listener, bars:
            outcome = run_study(study, self.launch, listener, self.out, resume=folder)
        if outcome is not None:
            self._end(outcome)
        return outcome

    def _end(self, outcome: StudyOutcome) -> None:
        from paceline.cli.console import show_outcome

        show_outcome(self.console, outcome.result, outcome.folder, with_page=self.report)
        write_json(outcome.result, self.json_target)

    def choose(
        self,
        kind: type[Study],
        prepare: Callable[[], Study],
        asked: Recipe | None = None,
        own_keys: tuple[str, ...] = (),
    ) -> tuple[Study, Path | None]:
        """Return the study to run, and the folder to resume in (None for a new one)."""
        from paceline.study.engine import find_unfinished

        if self.resume and self.fresh:
            raise UsageError("--resume and --fresh conflict; give one of the two")
        launcher = self.launcher()
        if not launcher.starts_all:
            if self.resume:
                raise UsageError(f"--resume needs one process that starts all workers; leave out {launcher.because}")
            return prepare(), None
        if self.resume:
            return self._resumed(kind, asked, own_keys)
        study = prepare()
        folder = None if self.fresh else find_unfinished(study, self.out)
        return study, folder if folder is not None and self._is_wanted(folder) else None

    def _resumed(self, kind: type[Study], asked: Recipe | None, own_keys: tuple[str, ...]) -> tuple[Study, Path]:
        from paceline.recipe import Recipe
        from paceline.results import DONE
        from paceline.runs import folder_of
        from paceline.study.study_folder import read_study

        folder = folder_of(self.resume, self.out)
        stored = read_study(folder)
        if stored.study != kind.name:
            raise UsageError(f"{self.resume!r} is a {stored.study}, not a {kind.name}; --resume needs a {kind.name}")
        if stored.status == DONE and not getattr(stored, "failed", None):
            raise UsageError(f"{self.resume!r} is finished; `paceline runs show {folder.name}` shows it")
        if asked is not None:
            _refuse_other_recipe(asked, Recipe.from_dict(stored.recipe), own_keys)
        self.console.print(f"Resuming {folder} ({_done_words(stored)}).", markup=False, soft_wrap=True)
        return kind.from_stored(stored, num_hosts=self.num_hosts), folder

    def _is_wanted(self, folder: Path) -> bool:
        """Ask whether to resume; without a terminal, resume."""
        from paceline.study.study_folder import read_study

        words = f"The same study is unfinished ({_done_words(read_study(folder))}): {folder}"
        if sys.stdin.isatty():
            self.console.print(words, markup=False, soft_wrap=True)
            return typer.confirm("Resume it?", default=True, err=self.console.stderr)
        self.console.print(f"{words}. Resuming it; --fresh starts a new one.", markup=False, soft_wrap=True)
        return True


def _done_words(stored: StudyResult) -> str:
    num_points = getattr(stored, "num_points", None)
    measured = len(stored.results)
    return f"{measured} of {num_points} points measured" if num_points else f"{measured} rows measured"


def _refuse_other_recipe(given: Recipe, stored: Recipe, own_keys: tuple[str, ...]) -> None:
    """Refuse options beside --resume that would change the stored recipe."""
    from paceline.recipe import DEFAULT_RECIPE, load_recipe, recipe_keys

    ours, theirs, usual = given.to_dict(), stored.to_dict(), load_recipe(DEFAULT_RECIPE).to_dict()
    for key, _ in recipe_keys():
        if key not in own_keys and _at(ours, key) not in (_at(theirs, key), _at(usual, key)):
            raise UsageError(f"--resume uses the stored recipe, and {key} differs from it; leave it out")


def _at(values: Mapping[str, Any], key: str) -> Any:
    section, dot, name = key.partition(".")
    return values.get(section, {}).get(name) if dot else values.get(section)


def _request() -> LaunchRequest:
    from paceline.launch.base import LaunchRequest

    return LaunchRequest()


def launcher_for(launch: LaunchRequest, cluster: ClusterConfig, *, only_once: str = "") -> Launcher:
    """Return the launcher for a command's options and cluster; mistakes in them are raised here.

    `only_once` names a command that decides while it runs what to run next, so that several processes side by side
    cannot run it.
    """
    from paceline.launch.registry import find_launcher

    launcher = find_launcher(replace(launch, cluster=cluster))
    if only_once and not launcher.starts_all:
        raise UsageError(
            f"{only_once} starts all workers itself; run it once, without {launcher.because}, or with --hosts"
        )
    launcher.check()
    return launcher


@contextmanager
def launched(num_processes: int, launcher: Launcher) -> Iterator[WorkerPool]:
    """Start workers; stop them, and their cluster, when the block ends."""
    with interruptible(), launcher.open(num_processes) as pool:
        yield pool


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into a one-sentence error."""
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
