"""The studies as functions, for scripts and notebooks.

The launcher of a study that is called as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from paceline.api.notebook_view import RunView, StudyView
from paceline.data.user_data import train_and_test
from paceline.errors import UsageError
from paceline.launch.base import Launcher, LaunchRequest, WorkerPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import DEFAULT_RECIPE, ClusterConfig, Recipe, load_recipe
from paceline.runs import stamped
from paceline.study.base import Study, StudyListener
from paceline.study.candidates import CODECS, PERIODS, Space, tried_strategies
from paceline.study.compare import Compare
from paceline.study.engine import run_study, unfinished
from paceline.study.entries import make_entry, settle_comm
from paceline.study.halving import Margins
from paceline.study.preflight import preflight
from paceline.study.remedies import parse_remedies
from paceline.study.run import execute, run_folder
from paceline.study.scale import Scale, parse_mode, parse_workers
from paceline.study.sweep import Sweep
from paceline.study.sweep_points import make_axes
from paceline.study.tune import Tune
from paceline.train.context import ignore_event
from paceline.train.user_objects import Constant, as_factory, pack, register


def run(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> RunView:
    """Train a recipe under its strategy; the result, a dict that prints as a table, with the run's folder in `folder`.

    Changes are recipe keys with `__` for the dot: `run("lenet5-mnist", strategy="ring", train__epochs=10)`.
    Workers are processes of this host, unless the recipe emulates nodes, `hosts` names hosts to reach over ssh, or
    `launcher` is a launcher's name, a `paceline.launch.base.Request` or a launcher. All studies take these two.
    """
    workers = CallLauncher(launcher, hosts)
    recipe = _recipe(recipe, changes, workers)
    entry = make_entry(recipe.strategy, recipe)
    preflight(recipe, [entry])
    with workers.launch(entry.num_processes, recipe.cluster) as pool:
        folder = run_folder(Path(out), stamped(f"{recipe.name}-{entry.label}"), pool)
        result = execute(pool, recipe, entry, folder=folder, on_event=ignore_event)
    assert result is not None
    assert folder is not None
    return RunView(result, folder.path)


def compare(
    recipe: str | Recipe | nn.Module | Callable[..., nn.Module] = DEFAULT_RECIPE,
    data: Any = None,
    *,
    strategies: str | Sequence[str] = (),
    loss: str | Callable[..., Any] | None = None,
    repeats: int = 1,
    out: str | Path = "runs",
    fresh: bool = False,
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> StudyView:
    """Train under several strategies and compare: `compare("lenet5-mnist")` or `compare(model, data)`.

    With `data` the first argument is a model: a name, `file.py:factory`, an nn.Module or a function that builds one.
    Data is a name, a paceline Data, a pair (train, test) of torch data sets or of (inputs, targets), or one of these
    alone, of which a tenth is then kept for the test. `loss` is a function of output and target. Objects travel to
    worker processes, so their classes must be importable there: in a file, not in a notebook's cells.
    """
    if strategies:
        changes["strategies"] = _names(strategies)
    given: list[str] = []
    if callable(loss):
        changes["train__loss"] = _give("loss", loss, given)
    elif loss is not None:
        changes["train__loss"] = loss
    if data is not None or not isinstance(recipe, str | Recipe):
        changes |= _parts(recipe, data, given)
        changes.setdefault("strategies", list(load_recipe(DEFAULT_RECIPE).strategies))
        recipe = Recipe()
    workers = CallLauncher(launcher, hosts, given)
    return _study(Compare.prepare(_recipe(recipe, changes, workers), repeats=repeats), out, workers, fresh=fresh)


def sweep(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    vary: Mapping[str, Sequence[Any]],
    remedies: Sequence[str] = (),
    repeats: int = 1,
    out: str | Path = "runs",
    fresh: bool = False,
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> StudyView:
    """Train a recipe with keys varied: `sweep("lenet5-mnist", vary={"batch_size": [32, 64]}, remedies=["linear"])`.

    Keys are a recipe's, an option's name, or `strategy.OPTION`; several make a grid. A point that fails or does not fit
    into memory is in `failures` and the rest goes on. An unfinished study of the same request goes on
    where it was, unless `fresh`; so do the other studies.
    """
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    base = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    starter = CallLauncher(launcher, hosts)
    axes, chosen = make_axes(vary), parse_remedies(remedies)
    num_hosts = starter.num_hosts(base.cluster)
    return _study(Sweep.prepare(base, axes, chosen, repeats=repeats, num_hosts=num_hosts), out, starter, fresh=fresh)


def scale(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    workers: str | Sequence[int] = (1, 2, 3, 4),
    mode: str = "strong",
    strategies: str | Sequence[str] = (),
    repeats: int = 1,
    out: str | Path = "runs",
    fresh: bool = False,
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> StudyView:
    """Train with more and more workers, each point against one worker: `scale("vgg11-cifar10", workers=[1, 2, 4])`.

    `mode` is strong (the global batch is kept), weak (each worker's is), or both. Each of `results` has `scaling`;
    `paying` says where a further worker stops paying. A point that fails is in `failed`, and the rest goes on.
    """
    numbers = workers if isinstance(workers, str) else ",".join(map(str, workers))
    counts = parse_workers(numbers)
    if strategies:
        changes["strategies"] = _names(strategies)
    starter = CallLauncher(launcher, hosts)
    settled = _recipe(recipe, {**changes, "workers": max(counts)}, starter)
    return _study(Scale.prepare(settled, counts, parse_mode(mode), repeats=repeats), out, starter, fresh=fresh)


def tune(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    strategies: str | Sequence[str] = (),
    buckets_mb: Sequence[float] = (),
    codecs: Sequence[str] = CODECS,
    periods: Sequence[int] = PERIODS,
    within: float = 0.5,
    within_loss: float = 2.0,
    eta: int = 3,
    repeats: int = 3,
    out: str | Path = "runs",
    fresh: bool = False,
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> StudyView:
    """Find strategy, bucket size, period and codec for a recipe: `tune("vgg11-cifar10", within=0.5)["best"]`.

    The best loses at most `within` points of accuracy against exact (or `within_loss` percent of loss, where accuracy
    says nothing); `best` has its label, how much faster it is, and the command and the library's call to use it.
    """
    starter = CallLauncher(launcher, hosts)
    settled = _recipe(recipe, changes, starter)
    space = Space(
        strategies=tuple(_names(strategies)) or tried_strategies(),
        buckets_mb=tuple(buckets_mb),
        codecs=tuple(codecs),
        periods=tuple(periods),
    )
    margins = Margins(points=within, loss_percent=within_loss)
    return _study(Tune.prepare(settled, space, margins=margins, eta=eta, repeats=repeats), out, starter, fresh=fresh)


def _names(strategies: str | Sequence[str]) -> list[str]:
    if isinstance(strategies, str):
        return [name for name in strategies.split(",") if name]
    return list(strategies)


def _study(study: Study, out: str | Path, workers: CallLauncher, *, fresh: bool) -> StudyView:
    """Run a study, or go on with an unfinished one of the same request.

    Objects that are given have no name that tells them apart, so that such a study always starts anew.
    """
    resume = None if fresh or workers.given else unfinished(study, Path(out))
    outcome = run_study(study, workers.launch, StudyListener(), Path(out), resume=resume)
    assert outcome is not None, "this process starts all workers, and reports"
    return StudyView(outcome.result, outcome.folder)


def _parts(model: Any, data: Any, given: list[str]) -> dict[str, str]:
    """A recipe's model and data, by name or by reference to an object."""
    if data is None:
        raise UsageError(f"compare() was given a {type(model).__name__} but no data: compare(model, data)")
    if isinstance(model, Recipe):
        raise UsageError("compare() was given a recipe and data; a recipe names its data: leave data out")
    if not (isinstance(model, str | nn.Module) or callable(model)):
        raise UsageError(f"a model is a name, an nn.Module or a function that builds one, not a {type(model).__name__}")
    names = [part if isinstance(part, str) else _name(part) for part in (model, data)]
    changes = {"name": "-".join(Path(name.partition(":")[0]).stem or "custom" for name in names)}
    changes["model__name"] = model if isinstance(model, str) else _give("model", as_factory(model), given)
    changes["data__name"] = data if isinstance(data, str) else _give("data", Constant(train_and_test(data)), given)
    return changes


def _give(name: str, value: Any, given: list[str]) -> str:
    given.append(name)
    return register(name, value)


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__)).strip("<>")


def _recipe(recipe: str | Recipe, changes: Mapping[str, Any], workers: CallLauncher) -> Recipe:
    """The recipe with its changes and a comm by name."""
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    changed = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    return settle_comm(changed, workers.num_hosts(changed.cluster))


LauncherChoice = (
    str | LaunchRequest | Launcher | None
)  # a name or `file.py:Class`, what a command's options say, or ready


@dataclass(frozen=True)
class CallLauncher:
    """How the workers of one call are started, and the objects that are sent to them."""

    choice: LauncherChoice
    hosts: str | Sequence[str] | None = None
    given: Sequence[str] = ()  # names of objects that the user gave

    def num_hosts(self, cluster: ClusterConfig) -> int:
        return launcher_for(self.choice, self.hosts, cluster).describe().num_hosts

    def launch(self, num_processes: int, cluster: ClusterConfig) -> WorkerPool:
        pool = launcher_for(self.choice, self.hosts, cluster).open(num_processes)
        if self.given:
            pool.give(pack(self.given))
        return pool


def launcher_for(choice: LauncherChoice, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    """The launcher that a call asks for, checked; one that needs several callers is refused."""
    if isinstance(choice, Launcher):
        launcher = _ready(choice, hosts, cluster)
    else:
        launcher = choose_launcher(replace(_request(choice, hosts), cluster=cluster))
    if not launcher.starts_all:
        raise UsageError(
            f"launcher {launcher.name!r} runs the same program in several processes, and this function returns its "
            "result in one; use the command of the same name there"
        )
    return launcher


def _request(choice: str | LaunchRequest | None, hosts: str | Sequence[str] | None) -> LaunchRequest:
    if isinstance(choice, LaunchRequest):
        if hosts is not None:
            raise UsageError("hosts are given twice: as hosts= and in the request of launcher=; leave one out")
        return choice
    names = hosts.split(",") if isinstance(hosts, str) else hosts
    given = None if names is None else tuple(name.strip() for name in names)
    if choice is None:
        return LaunchRequest(hosts=given, environment={})  # a script that torchrun started may still compare on its own
    return LaunchRequest(launcher=choice, hosts=given)


def _ready(launcher: Launcher, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    if hosts is not None:
        raise UsageError(f"hosts= conflicts with the {launcher.name} launcher given as launcher=; leave one out")
    if cluster.nodes and launcher.request.cluster != cluster:
        raise UsageError(
            f"the recipe emulates nodes ({cluster}), and the {launcher.name} launcher given as launcher= does not; "
            "leave one out"
        )
    launcher.check()
    return launcher
