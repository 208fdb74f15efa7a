"""Around a sweep: which one is meant, what it needs before it starts, and an interruption that ends in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from paceline.cli.parts.fetching import fetch_if_needed
from paceline.cli.parts.session import launcher_for
from paceline.errors import RunError, UsageError
from paceline.launch.base import Request as LaunchRequest
from paceline.launch.base import WorkerPool
from paceline.launch.registry import find_launcher
from paceline.recipe import DEFAULT_RECIPE, ClusterConfig, Recipe, load_recipe, recipe_keys
from paceline.runs import find
from paceline.study.memory import amount, footprint_key, predict
from paceline.study.points import Point, make_points
from paceline.study.remedies import parse_remedies
from paceline.study.sweep import Request, Sweep, unfinished
from paceline.study.vary import parse_vary

Stored = dict[str, Any]


def check_hosts(launch: LaunchRequest, cluster: ClusterConfig) -> int:
    """The number of real hosts; launchers that a sweep cannot use are refused."""
    launcher = find_launcher(replace(launch, cluster=cluster))
    if not launcher.starts_all:
        raise UsageError(
            f"a sweep is run from one host and starts new workers for every point; leave {launcher.because} out, or "
            "use --hosts"
        )
    launcher.check()
    return launcher.describe().num_hosts


def choose_request(
    recipe: Recipe,
    vary: Sequence[str],
    remedies: Sequence[str],
    repeats: int,
    num_hosts: int,
    *,
    out: Path,
    resume: str,
    is_fresh: bool,
    console: Console,
) -> tuple[Request, Stored | None]:
    """What is to be run, and the stored sweep that it goes on with, if any."""
    if resume:
        stored = _stored_sweep(resume, out)
        request = Request.of(stored, num_hosts)
        if vary or remedies or repeats not in (1, request.repeats):
            raise UsageError(
                "--resume goes on with a sweep as it was asked for: leave --vary, remedies and repeats out"
            )
        _refuse_other_recipe(recipe, request.recipe)
        return request, stored
    request = Request(recipe, parse_vary(vary), parse_remedies(remedies), repeats, num_hosts)
    found = None if is_fresh else unfinished(request, out)
    return request, found if found is not None and _is_wanted(found, console) else None


def _stored_sweep(name: str, out: Path) -> Stored:
    stored = find(name, out)
    if stored.get("study") != "sweep":
        raise UsageError(f"{name!r} is not a sweep, so that it cannot be resumed")
    return stored


def _refuse_other_recipe(given: Recipe, stored: Recipe) -> None:
    """Options beside --resume that would change the recipe must not be dropped without a word."""
    if given in (stored, load_recipe(DEFAULT_RECIPE)):
        return
    ours, theirs = given.to_dict(), stored.to_dict()
    differing = [key for key, _ in recipe_keys() if _at(ours, key) != _at(theirs, key)]
    raise UsageError(f"--resume goes on with the stored recipe, and {differing[0]} differs from it; leave it out")


def _at(values: dict[str, Any], key: str) -> Any:
    section, dot, name = key.partition(".")
    return values.get(section, {}).get(name) if dot else values.get(section)


def _is_wanted(found: Stored, console: Console) -> bool:
    """Ask where somebody can answer; elsewhere what was begun goes on."""
    done = f"{len(found['results'])} of {found['num_points']} points"
    where = f"This sweep was begun before and is not finished ({done} done): {found['folder']}"
    if sys.stdin.isatty():
        console.print(where, markup=False, soft_wrap=True)
        return typer.confirm("Go on with it?", default=True, err=console.stderr)
    console.print(f"{where}. Going on with it; --fresh starts anew.", markup=False, soft_wrap=True)
    return True


def fetch_all(request: Request, console: Console) -> None:
    """All published data that any point needs."""
    points = make_points(request.recipe, request.axes, request.remedies, num_hosts=request.num_hosts)
    for config in dict.fromkeys(point.recipe.data for point in points if point.entry is not None):
        fetch_if_needed(config, console)


def introduce(console: Console, sweep: Sweep) -> None:
    """What will be run, and how much memory it is predicted to need."""
    recipe, num_runs = sweep.request.recipe, len(sweep.points) * sweep.request.repeats
    axes = ", ".join(f"{axis.key} ({len(axis.values)} values)" for axis in sweep.request.axes)
    where = f", on emulated nodes ({recipe.cluster})" if recipe.cluster.nodes else ""
    console.print(
        f"{recipe.name}: {recipe.model.name} on {recipe.data.name}, {recipe.workers} workers{where}, "
        f"{len(sweep.points)} points over {axes}, "
        f"{num_runs} runs" + (f"; points done before: {sweep.num_finished}" if sweep.num_finished else ""),
        markup=False,
    )
    needs = [
        predict(sweep.footprints[footprint_key(point.recipe)], point.recipe, point.entry).total_bytes
        for point in sweep.points
        if point.entry is not None and footprint_key(point.recipe) in sweep.footprints
    ]
    for reason in sweep.not_predicted:
        console.print(reason, style="yellow", markup=False)
    if needs:
        span = amount(max(needs)) if min(needs) == max(needs) else f"{amount(min(needs))} to {amount(max(needs))}"
        console.print(f"predicted memory of all workers together: {span}", markup=False)


def start(point: Point, launch: LaunchRequest) -> WorkerPool:
    """New workers for one run, on the point's own cluster where it has one."""
    assert point.entry is not None
    return launcher_for(launch, point.recipe.cluster).open(point.entry.num_processes)


@contextmanager
def interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        interrupted = RunError("interrupted: all workers are stopped")
        for note in getattr(error, "__notes__", []):
            interrupted.add_note(note)
        raise interrupted from None
