"""Python functions for the commands run, compare, sweep, scale and tune, for scripts and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from paceline.api.notebook_view import RunView, StudyView
from paceline.data.user_data import split_train_and_test
from paceline.errors import UsageError
from paceline.launch.base import Launcher, LaunchRequest, WorkerPool
from paceline.launch.registry import choose_launcher
from paceline.recipe import DEFAULT_RECIPE, ClusterConfig, Recipe, load_recipe
from paceline.runs import timestamped
from paceline.study.base import Study, StudyListener
from paceline.study.candidates import CODECS, PERIODS, Space, tried_strategies
from paceline.study.compare import Compare
from paceline.study.engine import find_unfinished, run_study
from paceline.study.entries import make_entry, settle_comm
from paceline.study.halving import Margins
from paceline.study.preflight import preflight
from paceline.study.run import execute, run_folder
from paceline.study.scale import Scale, parse_mode, parse_workers
from paceline.study.sweep import Sweep
from paceline.study.sweep_axes import make_axes, parse_remedies
from paceline.study.tune import Tune
from paceline.train.context import ignore_event
from paceline.train.user_objects import ConstantFactory, as_factory, pack, register


def run(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> RunView:
    """Train a recipe under its strategy and return the result, a dict that prints as a table.

    A recipe holds all settings of a run. `recipe` is the name of a built-in recipe, the path of a TOML file, or a
    `Recipe`. `changes` are recipe keys with `__` instead of the dot:
    `run("lenet5-mnist", strategy="ring", train__epochs=10)`.

    The result is stored in a new folder in `out`. Workers are processes on this host. To start them elsewhere, name ssh
    hosts in `hosts`, or pass a launcher's name, a `LaunchRequest` or a `Launcher` as `launcher`. The functions compare,
    sweep, scale and tune also take `recipe`, `changes`, `out`, `launcher` and `hosts`.
    """
    workers = CallLauncher(launcher, hosts)
    recipe = _recipe(recipe, changes, workers)
    entry = make_entry(recipe.strategy, recipe)
    preflight(recipe, [entry])
    with workers.launch(entry.num_processes, recipe.cluster) as pool:
        folder = run_folder(Path(out), timestamped(f"{recipe.name}-{entry.label}"), pool)
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
    """Train under several strategies and compare them: `compare("lenet5-mnist")` or `compare(model, data)`.

    Without `data`, the first argument is a recipe, as in `run`. With `data`, it is a model: the name of a built-in
    model, `file.py:factory`, an nn.Module, or a function that returns an nn.Module.

    `data` is the name of a data set, `file.py:factory`, a `paceline.Data`, or a pair (train, test), where `train`
    and `test` are each a torch data set or a pair (inputs, targets) of tensors. If `data` is a single torch data set or
    a single pair of tensors, a random tenth of its samples becomes the test set.

    `loss` is a function of output and target, or its name. Python objects are pickled and sent to worker processes, so
    define their classes and functions in a file, not in a notebook cell. `repeats` is the number of runs per strategy.

    If an unfinished comparison with the same arguments is stored in `out`, it is resumed, unless `fresh` is true or
    Python objects are passed.
    """
    if strategies:
        changes["strategies"] = _names(strategies)
    objects: list[str] = []
    if callable(loss):
        changes["train__loss"] = _register("loss", loss, objects)
    elif loss is not None:
        changes["train__loss"] = loss
    if data is not None or not isinstance(recipe, str | Recipe):
        changes |= _model_and_data(recipe, data, objects)
        changes.setdefault("strategies", list(load_recipe(DEFAULT_RECIPE).strategies))
        recipe = Recipe()
    workers = CallLauncher(launcher, hosts, objects)
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
    """Vary keys of a recipe: `sweep("lenet5-mnist", vary={"batch_size": [32, 64]}, remedies=["linear"])`.

    A key of `vary` is a recipe key, the name of a command-line option, or `strategy.OPTION` for an option of the
    strategy. The recipe is trained with every combination of the keys' values. Combinations that fail or do not fit
    into memory are listed in the result's `failures`. `remedies` are additional settings to try for large batches:
    linear, lars, lamb.

    If an unfinished sweep with the same arguments is stored in `out`, it is resumed, unless `fresh` is true.
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
    """Train with several numbers of workers and compare with one worker: `scale("vgg11-cifar10", workers=[1, 2, 4])`.

    `mode` is strong (constant global batch), weak (constant batch per worker) or both. In the returned result, each row
    of `results` has `scaling`: speed-up and efficiency. `paying` has, for every mode and strategy, the number of
    workers up to which throughput grows. Combinations of strategy and number of workers that fail are in `failed`.
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
    """Find the fastest strategy, bucket size, period and codec: `tune("vgg11-cifar10", within=0.5)["best"]`.

    The winner's test accuracy is at most `within` percentage points below that of the reference, an exact strategy. If
    the reference is no better than chance, test losses are compared instead, and the winner's loss is at most
    `within_loss` percent higher. `best` has the winner's label, its step time divided by that of the reference, and the
    command and the library call that use the winner.

    `buckets_mb` are bucket sizes to try (default: fractions of the model's size). `periods` are periods to try, each a
    number of steps between two synchronisations. `eta` controls successive halving: each round keeps about one in `eta`
    combinations, and the next round trains these for about `eta` times as many steps. `repeats` is the number of runs
    of each combination in the last round.
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
    """Run a study, or resume an unfinished one with the same arguments.

    A study of Python objects (such as a model) is not resumed, because the objects of two calls cannot be compared.
    """
    resume = None if fresh or workers.objects else find_unfinished(study, Path(out))
    outcome = run_study(study, workers.launch, StudyListener(), Path(out), resume=resume)
    assert outcome is not None, "this process starts all workers"
    return StudyView(outcome.result, outcome.folder)


def _model_and_data(model: Any, data: Any, objects: list[str]) -> dict[str, str]:
    """Return the changes that set the name, the model and the data of a recipe.

    Python objects are registered under names, so that they can be sent to workers. The names are added to `objects`.
    """
    if data is None:
        raise UsageError(f"compare() got a {type(model).__name__} but no data; call compare(model, data)")
    if isinstance(model, Recipe):
        raise UsageError("compare() got a recipe and data, but a recipe has its own data; leave data out")
    if not (isinstance(model, str | nn.Module) or callable(model)):
        raise UsageError(f"a model is a name, an nn.Module or a function that builds one, not a {type(model).__name__}")
    names = [part if isinstance(part, str) else _name(part) for part in (model, data)]
    changes = {"name": "-".join(Path(name.partition(":")[0]).stem or "custom" for name in names)}
    changes["model__name"] = model if isinstance(model, str) else _register("model", as_factory(model), objects)
    changes["data__name"] = (
        data if isinstance(data, str) else _register("data", ConstantFactory(split_train_and_test(data)), objects)
    )
    return changes


def _register(name: str, value: Any, objects: list[str]) -> str:
    objects.append(name)
    return register(name, value)


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__)).strip("<>")


def _recipe(recipe: str | Recipe, changes: Mapping[str, Any], workers: CallLauncher) -> Recipe:
    """Apply changes to a recipe, and choose a comm (communication backend) if the recipe's comm is `auto`."""
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    changed = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    return settle_comm(changed, workers.num_hosts(changed.cluster))


# The name of a launcher or `file.py:Class`, a request with the options of a command, a launcher, or None to choose one.
LauncherChoice = str | LaunchRequest | Launcher | None


@dataclass(frozen=True)
class CallLauncher:
    """Starts the workers for one call of an API function, and sends Python objects to them."""

    choice: LauncherChoice
    hosts: str | Sequence[str] | None = None
    objects: Sequence[str] = ()  # names of the registered Python objects to send

    def num_hosts(self, cluster: ClusterConfig) -> int:
        return launcher_for(self.choice, self.hosts, cluster).describe().num_hosts

    def launch(self, num_processes: int, cluster: ClusterConfig) -> WorkerPool:
        pool = launcher_for(self.choice, self.hosts, cluster).open(num_processes)
        if self.objects:
            pool.set_objects(pack(self.objects))
        return pool


def launcher_for(choice: LauncherChoice, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    """Return the launcher for an API call. Raise UsageError if the launcher does not start all workers itself."""
    if isinstance(choice, Launcher):
        launcher = _ready(choice, hosts, cluster)
    else:
        launcher = choose_launcher(replace(_request(choice, hosts), cluster=cluster))
    if not launcher.starts_all:
        raise UsageError(
            f"launcher {launcher.name!r} runs this program in several processes, but functions such as "
            "paceline.compare() must start all workers from one; use the command, such as `paceline compare`"
        )
    return launcher


def _request(choice: str | LaunchRequest | None, hosts: str | Sequence[str] | None) -> LaunchRequest:
    if isinstance(choice, LaunchRequest):
        if hosts is not None:
            raise UsageError(
                "hosts= conflicts with the request passed as launcher=, which has its own hosts; use one of the two"
            )
        return choice
    names = hosts.split(",") if isinstance(hosts, str) else hosts
    stripped = None if names is None else tuple(name.strip() for name in names)
    if choice is None:
        return LaunchRequest(hosts=stripped, environment={})  # the empty environment ignores torchrun's variables
    return LaunchRequest(launcher=choice, hosts=stripped)


def _ready(launcher: Launcher, hosts: str | Sequence[str] | None, cluster: ClusterConfig) -> Launcher:
    if hosts is not None:
        raise UsageError(f"hosts= conflicts with the {launcher.name} launcher passed as launcher=; use one of the two")
    if cluster.nodes and launcher.request.cluster != cluster:
        raise UsageError(
            f"the recipe emulates nodes ({cluster}), but the {launcher.name} launcher passed as launcher= does not; "
            "use one of the two"
        )
    launcher.check()
    return launcher
