"""The studies as functions, for scripts and notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from paceline.api.shown import Comparison, RunResult
from paceline.api.workers import LauncherChoice, launcher_for
from paceline.data.user import train_and_test
from paceline.errors import UsageError
from paceline.launch.base import Launcher, WorkerPool
from paceline.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from paceline.runs import stamped
from paceline.study import compare as study
from paceline.study import scale as scaling
from paceline.study import scale_plan
from paceline.study import tune as tuning
from paceline.study.candidates import CODECS, PERIODS, STRATEGIES, Space
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.halving import Margins
from paceline.study.points import Point
from paceline.study.preflight import preflight
from paceline.study.remedies import parse_remedies
from paceline.study.results import Result
from paceline.study.run import execute, run_folder
from paceline.study.sweep import Request, open_sweep, run_sweep, unfinished
from paceline.study.vary import make_axes
from paceline.train.context import Event
from paceline.train.given import Constant, as_factory, give, packed


def run(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> RunResult:
    """Train a recipe under its strategy; the result, a dict that prints as a table, with the run's folder in `folder`.

    Changes are recipe keys with `__` for the dot: `run("lenet5-mnist", strategy="ring", train__epochs=10)`.
    Workers are processes of this host, unless the recipe emulates nodes, `hosts` names hosts to reach over ssh, or
    `launcher` is a launcher's name, a `paceline.launch.base.Request` or a launcher. All studies take these two.
    """
    recipe, starter = _settled(recipe, changes, launcher, hosts)
    entry = make_entry(recipe.strategy, recipe)
    preflight(recipe, [entry])
    with starter.open(entry.num_processes) as pool:
        folder = run_folder(Path(out), stamped(f"{recipe.name}-{entry.label}"), pool)
        result = execute(pool, recipe, entry, folder=folder, on_event=_ignore)
    assert result is not None
    assert folder is not None
    return RunResult({**result, "folder": str(folder.path)})


def compare(
    recipe: str | Recipe | nn.Module | Callable[..., nn.Module] = DEFAULT_RECIPE,
    data: Any = None,
    *,
    strategies: str | Sequence[str] = (),
    loss: str | Callable[..., Any] | None = None,
    repeats: int = 1,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> Comparison:
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
    settled, starter = _settled(recipe, changes, launcher, hosts)
    entries, facts = study.prepare(settled)
    pool = starter.open(max(entry.num_processes for entry in entries))
    if given:
        pool.give(packed(given))
    with pool:
        outcome = study.compare(
            settled,
            entries,
            pool,
            repeats=repeats,
            out=Path(out),
            listener=_Quiet(),
            total_steps=facts.total_steps,
        )
    assert outcome is not None
    return Comparison(outcome[0], outcome[1])


def sweep(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    vary: Mapping[str, Sequence[Any]],
    remedies: Sequence[str] = (),
    repeats: int = 1,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> Comparison:
    """Train a recipe with keys varied: `sweep("lenet5-mnist", vary={"batch_size": [32, 64]}, remedies=["linear"])`.

    Keys are a recipe's, an option's name, or `strategy.OPTION`; several make a grid. A point that fails or does not fit
    into memory is in `failures` and the rest goes on. An unfinished sweep of the same request goes on where it was.
    """
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    base = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    starter = launcher_for(launcher, hosts, base.cluster)
    request = Request(base, make_axes(vary), parse_remedies(remedies), repeats, starter.describe().num_hosts)
    opened = open_sweep(request, out=Path(out), resume=unfinished(request, Path(out)))

    def start(point: Point) -> WorkerPool:
        assert point.entry is not None
        return launcher_for(launcher, hosts, point.recipe.cluster).open(point.entry.num_processes)

    return Comparison(run_sweep(opened, start, _Quiet()), opened.folder)


def scale(
    recipe: str | Recipe = DEFAULT_RECIPE,
    *,
    workers: str | Sequence[int] = (1, 2, 3, 4),
    mode: str = "strong",
    strategies: str | Sequence[str] = (),
    repeats: int = 1,
    out: str | Path = "runs",
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> Comparison:
    """Train with more and more workers, each point against one worker: `scale("vgg11-cifar10", workers=[1, 2, 4])`.

    `mode` is strong (the global batch is kept), weak (each worker's is), or both. Each of `results` has `scaling`;
    `paying` says where a further worker stops paying. A point that fails is in `failed`, and the rest goes on.
    """
    numbers = workers if isinstance(workers, str) else ",".join(map(str, workers))
    counts = scale_plan.parse_workers(numbers)
    if strategies:
        changes["strategies"] = _names(strategies)
    settled, starter = _settled(recipe, {**changes, "workers": max(counts)}, launcher, hosts)
    plan = scale_plan.prepare(settled, counts, scale_plan.parse_mode(mode))
    with starter.open(plan.num_processes) as pool:
        outcome = scaling.scale(plan, pool, repeats=repeats, out=Path(out), listener=_Quiet())
    assert outcome is not None
    return Comparison(outcome[0], outcome[1])


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
    launcher: LauncherChoice = None,
    hosts: str | Sequence[str] | None = None,
    **changes: Any,
) -> Comparison:
    """Find strategy, bucket size, period and codec for a recipe: `tune("vgg11-cifar10", within=0.5)["best"]`.

    The best loses at most `within` points of accuracy against exact (or `within_loss` percent of loss, where accuracy
    says nothing); `best` has its label, how much faster it is, and the command and the library's call to use it.
    """
    settled, starter = _settled(recipe, changes, launcher, hosts)
    space = Space(
        strategies=tuple(_names(strategies)) or STRATEGIES,
        buckets_mb=tuple(buckets_mb),
        codecs=tuple(codecs),
        periods=tuple(periods),
    )
    margins = Margins(points=within, loss_percent=within_loss)
    plan = tuning.prepare(settled, space, margins=margins, eta=eta, repeats=repeats)
    with starter.open(plan.num_processes) as pool:
        found, folder = tuning.tune(
            settled,
            plan,
            pool,
            out=Path(out),
            follow=lambda *_: contextlib.nullcontext(_Quiet()),
            on_rung=_ignore,
        )
    return Comparison(found, folder)


def _names(strategies: str | Sequence[str]) -> list[str]:
    if isinstance(strategies, str):
        return [name for name in strategies.split(",") if name]
    return list(strategies)


def _parts(model: Any, data: Any, given: list[str]) -> dict[str, Any]:
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
    return give(name, value)


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__)).strip("<>")


def _settled(
    recipe: str | Recipe, changes: dict[str, Any], launcher: LauncherChoice, hosts: str | Sequence[str] | None
) -> tuple[Recipe, Launcher]:
    """The recipe with its changes and a comm by name, and the launcher that starts its workers."""
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    changed = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    starter = launcher_for(launcher, hosts, changed.cluster)
    return settle_comm(changed, starter.describe().num_hosts), starter


def _ignore(event: Mapping[str, Any]) -> None:
    del event


class _Quiet:
    """Follows a study without a word."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: Result) -> None: ...
