"""The studies as functions, for scripts and notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from paceline.data.user import train_and_test
from paceline.errors import UsageError
from paceline.launch.base import Launcher, Task
from paceline.launch.local import LocalLauncher
from paceline.recipe import DEFAULT_RECIPE, Recipe, load_recipe
from paceline.runs import stamped
from paceline.study import compare as study
from paceline.study.entries import Entry, make_entry, settle_comm
from paceline.study.points import Point
from paceline.study.preflight import preflight
from paceline.study.remedies import parse_remedies
from paceline.study.results import Result
from paceline.study.run import execute, run_folder
from paceline.study.sweep import Request, open_sweep, run_sweep, unfinished
from paceline.study.vary import make_axes
from paceline.train.context import Event
from paceline.train.given import Constant, as_factory, give, packed, train_given

DASH = "\N{EN DASH}"


def run(recipe: str | Recipe = DEFAULT_RECIPE, *, out: str | Path = "runs", **changes: Any) -> RunResult:
    """Train a recipe under its strategy; the result, a dict that prints as a table, with the run's folder in `folder`.

    Changes are recipe keys with `__` for the dot: `run("lenet5-mnist", strategy="ring", train__epochs=10)`.
    """
    recipe = _recipe(recipe, changes)
    entry = make_entry(recipe.strategy, recipe)
    preflight(recipe, [entry])
    with LocalLauncher(entry.num_processes, cluster=recipe.cluster) as launcher:
        folder = run_folder(Path(out), stamped(f"{recipe.name}-{entry.label}"), launcher)
        result = execute(launcher, recipe, entry, folder=folder, on_event=_ignore)
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
    **changes: Any,
) -> Comparison:
    """Train under several strategies and compare: `compare("lenet5-mnist")` or `compare(model, data)`.

    With `data` the first argument is a model: a name, `file.py:factory`, an nn.Module or a function that builds one.
    Data is a name, a paceline Data, a pair (train, test) of torch data sets or of (inputs, targets), or one of these
    alone, of which a tenth is then kept for the test. `loss` is a function of output and target. Objects travel to
    worker processes, so their classes must be importable there: in a file, not in a notebook's cells.
    """
    if strategies:
        changes["strategies"] = strategies.split(",") if isinstance(strategies, str) else list(strategies)
    given: list[str] = []
    if callable(loss):
        changes["train__loss"] = _give("loss", loss, given)
    elif loss is not None:
        changes["train__loss"] = loss
    if data is not None or not isinstance(recipe, str | Recipe):
        changes |= _parts(recipe, data, given)
        changes.setdefault("strategies", list(load_recipe(DEFAULT_RECIPE).strategies))
        recipe = Recipe()
    settled = _recipe(recipe, changes)
    entries, facts = study.prepare(settled)
    with LocalLauncher(max(entry.num_processes for entry in entries), cluster=settled.cluster) as local:
        launcher = _Giving(local, packed(given)) if given else local
        outcome = study.compare(
            settled,
            entries,
            launcher,
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
    **changes: Any,
) -> Comparison:
    """Train a recipe with keys varied: `sweep("lenet5-mnist", vary={"batch_size": [32, 64]}, remedies=["linear"])`.

    Keys are a recipe's, an option's name, or `strategy.OPTION`; several make a grid. A point that fails or does not fit
    into memory is in `failures` and the rest goes on. An unfinished sweep of the same request goes on where it was.
    """
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    base = base.replace({key.replace("__", "."): value for key, value in changes.items()})
    request = Request(base, make_axes(vary), parse_remedies(remedies), repeats)
    opened = open_sweep(request, out=Path(out), resume=unfinished(request, Path(out)))
    return Comparison(run_sweep(opened, _workers_for, _Quiet()), opened.folder)


def _workers_for(point: Point) -> Launcher:
    assert point.entry is not None
    return LocalLauncher(point.entry.num_processes, cluster=point.recipe.cluster)


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


def _recipe(recipe: str | Recipe, changes: dict[str, Any]) -> Recipe:
    base = load_recipe(recipe) if isinstance(recipe, str) else recipe
    return settle_comm(base.replace({key.replace("__", "."): value for key, value in changes.items()}))


class _Giving(Launcher):
    """Sends objects along with every task."""

    def __init__(self, inner: Launcher, given: bytes) -> None:
        self._inner, self._given = inner, given

    def run(self, task: Task, on_event: Callable[[Event], None]) -> list[Any]:
        arguments = {"given": self._given, **task.arguments}
        return self._inner.run(replace(task, function=train_given, arguments=arguments), on_event)

    def close(self) -> None:
        self._inner.close()


class Comparison(Mapping[str, Any]):
    """A study as a table: shown as one in a terminal and in a notebook, and everything in it by key.

    `rows` are plain values for a data frame, `study` is all that was measured, `folder` is where it is stored.
    """

    def __init__(self, study: dict[str, Any], folder: Path) -> None:
        self.study = study
        self.folder = folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per strategy, with what most people look at first."""
        return [
            {
                **result.get("point", {}),
                "strategy": result["label"],
                "workers": result["workers"],
                "iteration_s": result["iteration_s"]["mean"],
                "samples_per_s": result["samples_per_s"],
                "sent_bytes": max((worker["sent_bytes"] for worker in result["per_worker"]), default=None),
                **{key: result["final"][key] for key in ("train_loss", "test_loss", "test_accuracy")},
                "replica_drift": result["replica_drift"],
                "guarantee": result["guarantee"],
            }
            for result in self.study["results"]
        ]

    def __getitem__(self, key: str) -> Any:
        return str(self.folder) if key == "folder" else self.study[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.study
        yield "folder"

    def __len__(self) -> int:
        return len(self.study) + 1

    def __repr__(self) -> str:
        return as_text(*self._cells(), foot=f"study {self.folder}")

    def _repr_html_(self) -> str:
        head, body, _ = self._cells()
        return as_html(head, body, foot=str(self.folder))

    def _cells(self) -> tuple[list[str], list[list[str]], list[bool]]:
        from paceline.report.table import COLUMNS

        shown = [column for column in COLUMNS if column.full_name in _SHOWN]
        results = self.study["results"]
        body = [[*(column.text(result) for column in shown), *_split_cells(result)] for result in results]
        head = [*(column.full_name for column in shown), "Overlap", "Waiting"]
        return head, body, [*(column.is_number for column in shown), True, True]


class RunResult(dict[str, Any]):
    """A run's result: a plain dict whose text is a short table of its workers, not thousands of numbers."""

    def __repr__(self) -> str:
        head, body = self._cells()
        return as_text(head, body, [True] * len(head), foot=self._foot())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return as_html(*self._cells(), foot=self._foot())

    def _foot(self) -> str:
        return f"{self['label']}, {self['steps']} steps, run {self['folder']}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        splits = {row["rank"]: row for row in (self.get("split") or {}).get("per_worker", [])}
        head = ["Worker", "Iteration, ms", "Sent, MB", "Loss test", "Accuracy test", "Overlap", "Waiting"]
        body = []
        for worker in self["per_worker"]:
            own = {"split": {"mean": splits[worker["rank"]]}} if worker["rank"] in splits else {}
            figures = [f"{1000 * worker['iteration_s']:.2f}", f"{worker['sent_bytes'] / 1e6:.2f}"]
            scores = [DASH if value is None else f"{value:.4g}" for value in (worker["test_loss"],)]
            scores.append(_share(worker["test_accuracy"], digits=1))
            body.append([str(worker["rank"]), *figures, *scores, *_split_cells(own)])
        return head, body


def _split_cells(result: Mapping[str, Any]) -> list[str]:
    """How much of its communication was hidden, and how much of a step was spent waiting for others."""
    mean = (result.get("split") or {}).get("mean")
    if not mean:
        return [DASH, DASH]
    return [_share(mean["overlap_fraction"]), _share(mean["waiting_s"] / mean["step_s"])]


def _share(value: float | None, digits: int = 0) -> str:
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def as_text(head: list[str], body: list[list[str]], is_number: list[bool], *, foot: str) -> str:
    widths = [max(len(row[index]) for row in [head, *body]) for index in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in [head, *body]
    ]
    return "\n".join([*lines, foot])


def as_html(head: list[str], body: list[list[str]], *, foot: str) -> str:
    rows = [("th", head), *(("td", row) for row in body)]
    text = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>" for tag, cells in rows
    )
    return f"<table>{text}</table><p>{html.escape(foot)}</p>"


_SHOWN = {
    "Strategy",
    "Workers",
    "Iteration, ms mean",
    "To fastest",
    "Samples/s",
    "Sent, MB",
    "Accuracy test",
    "Loss test",
    "Replica drift",
    "Guarantee",
}


def _ignore(event: Event) -> None:
    del event


class _Quiet:
    """Follows a study without a word."""

    def started(self, entry: Entry, repeat: int) -> None: ...

    def event(self, entry: Entry, event: Event) -> None: ...

    def done(self, entry: Entry, repeat: int, result: Result) -> None: ...
