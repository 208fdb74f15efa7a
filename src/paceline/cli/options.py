"""Options that commands share. Recipe options are generated from the fields of a recipe."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paceline.cli.console import PlainConsole
from paceline.cli.launch_options import host_options as host_options
from paceline.cli.launch_options import keyword, offering, own_parameters
from paceline.errors import RunError, UsageError
from paceline.output_files import atomic_file, is_stream
from paceline.recipe import (
    DEFAULT_RECIPE,
    Changes,
    Recipe,
    key_type,
    load_recipe,
    parse_cluster,
    parse_set,
    recipe_keys,
)
from paceline.runs import finite

PANELS = {
    "model": "Model and data",
    "data": "Model and data",
    "train": "Training",
    "optimizer": "Optimiser and learning rate",
    "schedule": "Optimiser and learning rate",
    "measure": "Measuring",
    "": "Workers and synchronisation",
}

RecipeArgument = Annotated[str, typer.Argument(help="A recipe's name, or a TOML file.", metavar="[RECIPE]")]
Out = Annotated[Path, typer.Option("--out", help="Folder for results.")]
# For commands with --output, which --out (the older name) would be confused with.
Runs = Annotated[Path, typer.Option("--runs", "--out", help="Folder of stored runs and studies.")]
Json = Annotated[
    str, typer.Option("--json", help="Write the result as JSON to a file; - is standard output.", metavar="FILE")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change any recipe key: --set data.train_samples=2000.", metavar="KEY=VALUE"),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Emulate nodes on this machine, each with its own network, link and cores: "
        "nodes=4,cpus=0.5,bandwidth=1gbit and optionally latency=1ms, loss=0.1%, memory=2g, "
        "links=0-2:100mbit, slow=3:0.5. nodes=0 disables a recipe's cluster.",
        rich_help_panel="Emulated nodes",
        metavar="KEY=VALUE,...",
        show_default=False,
    ),
]
WithoutShares = Annotated[
    bool,
    typer.Option(
        "--without-cpu-shares",
        help="Emulate nodes without CPU shares, for users who may not set them.",
        rich_help_panel="Emulated nodes",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Serve Prometheus metrics on this port while the run lasts; 0 picks a free port.",
        rich_help_panel="Measuring",
        min=0,
        max=65535,
    ),
]
MetricsHost = Annotated[
    str, typer.Option("--metrics-host", help="Address to serve metrics on.", rich_help_panel="Measuring")
]


def recipe_options(
    *, leave_out: tuple[str, ...], also: Callable[[Mapping[str, Any]], Changes] = lambda _: {}
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command every option of a recipe; it receives the finished recipe instead of them.

    `also` maps the command's own options to changes of the recipe.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keys = {
            key.replace(".", "__"): key
            for key, field in recipe_keys()
            if field.metadata["flag"] and key not in leave_out
        }
        recipe_parameter = keyword("recipe", RecipeArgument, DEFAULT_RECIPE)
        offered = [_parameter(name, key) for name, key in keys.items()]
        set_parameter = keyword("assignments", Set, None)
        cluster = [keyword("cluster", Cluster, None), keyword("without_shares", WithoutShares, False)]
        own = own_parameters(command, but="recipe")

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            given = {key: arguments.pop(name) for name, key in keys.items()}
            _check_repeated(given)
            cluster_text = arguments.pop("cluster")
            # A single key overrides the section as a whole.
            changes = {} if cluster_text is None else parse_cluster(cluster_text)
            changes |= parse_set(arguments.pop("assignments") or [])
            # A repeatable option that was not given is an empty list.
            changes |= {key: value for key, value in given.items() if value is not None and value != []}
            if arguments.pop("without_shares"):
                changes |= {"cluster.cpus": None, "cluster.slow": []}
            changes |= also(arguments)
            base = load_recipe(arguments.pop("recipe"))
            command(recipe=_under_torchrun(base, changes, leave_out), **arguments)

        return offering(wrapper, [recipe_parameter, *offered, *cluster, set_parameter, *own])

    return decorate


def _check_repeated(given: Mapping[str, Any]) -> None:
    """Refuse a repeatable option with an empty value, which would be dropped silently."""
    for key, value in given.items():
        if isinstance(value, list) and not all(word.strip() for word in value):
            flag = dict(recipe_keys())[key].metadata["flag"]
            raise UsageError(f"{flag} was given without a value; leave it out, or see --help for an example")


def _parameter(name: str, key: str) -> inspect.Parameter:
    field = dict(recipe_keys())[key]
    hint = key_type(key)
    if isinstance(hint, types.UnionType):
        hint = next(part for part in hint.__args__ if part is not type(None))
    if typing.get_origin(hint) is tuple:
        hint = list[str] if field.metadata["is_repeated"] else str
    section = key.partition(".")[0] if "." in key else ""
    choices = field.metadata["choices"]
    option = typer.Option(
        field.metadata["flag"],
        help=_capital(field.metadata["help"], choices),
        rich_help_panel=PANELS[section],
        metavar="NAME" if choices else None,
        show_default=False,
    )
    annotation = Annotated[hint | None, option]  # type: ignore[valid-type]
    return keyword(name, annotation, None)


def _capital(text: str, choices: tuple[str, ...]) -> str:
    listed = f": {', '.join(choices)}" if choices else ""
    return f"{text[0].upper()}{text[1:]}{listed}."


def _under_torchrun(recipe: Recipe, changes: Changes, leave_out: tuple[str, ...]) -> Recipe:
    """Take the number of workers from torchrun, where it started the processes; the last ranks are servers."""
    if not _is_torchrun():
        return recipe.replace(changes)
    servers = _most_servers(recipe, changes, leave_out)
    return recipe.replace({**changes, "workers": settle_workers(changes.get("workers"), servers)})


def _is_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def settle_workers(given: int | None, num_servers: int = 0) -> int | None:
    """Return the number of workers that torchrun started, or `given` without torchrun; refuse a conflict."""
    if not _is_torchrun():
        return given
    try:
        started = int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise UsageError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, not a whole number") from None
    if started <= num_servers:
        raise UsageError(
            f"the strategy needs {num_servers} servers beside the workers, but torchrun started {started} in all"
        )
    workers = started - num_servers
    if given not in (None, workers):
        beside = f", of {started} processes with {num_servers} as servers" if num_servers else ""
        raise UsageError(f"--workers {given} conflicts with the {workers} workers that torchrun started{beside}")
    return workers


def _most_servers(recipe: Recipe, changes: Changes, leave_out: tuple[str, ...]) -> int:
    """The largest number of servers that a strategy of the command needs; all strategies have the same workers."""
    from paceline.strategies import StrategySpec
    from paceline.strategies.capabilities import servers_of
    from paceline.study.entries import ONE_WORKER

    key = "strategy" if "strategies" in leave_out else "strategies"
    asked = changes.get(key, getattr(recipe, key))
    texts = [word.strip() for word in asked.split(",")] if isinstance(asked, str) else list(asked)
    codec = changes.get("codec", recipe.codec)
    built = [StrategySpec.parse(text, codec).build() for text in texts if text != ONE_WORKER]
    return max((servers_of(strategy, recipe.workers) for strategy in built), default=0)


def console_for(json_target: str, *, is_main: bool = True) -> Console:
    """A console on standard output, or on standard error where that carries JSON; silent unless `is_main`."""
    return PlainConsole(stderr=json_target == "-", quiet=not is_main)


def write_json(value: Any, target: str) -> None:
    """Write a result as JSON to the target of --json; do nothing where it is empty."""
    if not target:
        return
    text = json.dumps(finite(value), indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        with atomic_file(target) as file:
            file.write(text)
    except OSError as error:
        raise RunError(f"{target!r} cannot be written: {error.strerror}") from None


def check_json_target(target: str) -> None:
    """Check before measuring that the JSON file can be written."""
    if target != "-":
        _check_target("--json", target)


def check_output_target(target: str) -> None:
    _check_target("--output", target)


def check_page_target(target: str) -> None:
    if target and not target.endswith((".html", ".htm")):
        raise UsageError(f"--plot {target!r}: a plot is an HTML page; name a file that ends in .html")
    _check_target("--plot", target)


def parse_percent(option: str, text: str) -> float:
    """Return 5.0 for `5%`. The sign is required, because 0.05 could be meant as a fraction."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not text.endswith("%") or not 0 <= value < 1e6:
        raise UsageError(f"{option} {text!r} is not a percentage such as 5%")
    return value


def check_trace_target(target: str) -> None:
    if target and not target.endswith((".json", ".json.gz")):
        raise UsageError(f"--output {target!r}: name a file that ends in .json or .json.gz; viewers go by that")
    _check_target("--output", target)


def check_target(option: str, target: str, *, ends: str = "") -> None:
    """Check the ending of a file name and that its folder exists."""
    if target and ends and not target.endswith(ends):
        raise UsageError(f"{option} {target!r}: name a file that ends in {ends}")
    _check_target(option, target)


def check_different(targets: dict[str, str], *, read: Sequence[str] = ()) -> None:
    """Refuse outputs that are also inputs, and two outputs to one file."""
    files = [("the input", name) for name in read if Path(name).is_file()]
    files += [(option, name) for option, name in targets.items() if name not in ("", "-") and not is_stream(name)]
    taken: dict[str, str] = {}
    for option, name in files:
        first = taken.setdefault(os.path.realpath(name), option)
        if first != option:
            raise UsageError(f"{first} and {option} are the same file, {name!r}")


def _check_target(option: str, target: str) -> None:
    if not target:
        return
    real = Path(os.path.realpath(target))
    if real.is_symlink():
        raise UsageError(f"{option} {target!r} is a link that leads back to itself")
    folder = real.parent
    if is_stream(target) and not Path(target).is_dir():
        if not os.access(target, os.W_OK):
            raise UsageError(f"{option} {target!r} cannot be written")
        return
    if not folder.is_dir():
        named = folder if Path(target).is_symlink() else Path(target).parent
        raise UsageError(f"{option} {target!r}: the folder {str(named)!r} does not exist")
    if Path(target).is_dir():
        raise UsageError(f"{option} {target!r} is a folder; name a file in it")
    try:
        tempfile.TemporaryFile(dir=folder).close()  # os.access is wrong for /proc and read-only disks
    except OSError:
        raise UsageError(f"{option} {target!r}: the folder cannot be written") from None
