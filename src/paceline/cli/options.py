"""Command-line options that several commands share. Options for recipe keys are generated from the recipe's fields.

A decorator such as `recipe_options` adds options to a command, and passes the command one argument made from the values
of these options.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.errors import UsageError
from paceline.launch.base import DEFAULT_ADDRESS, DEFAULT_PORT, LaunchRequest
from paceline.present.numbers import counted
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

PANELS = {
    "model": "Model and data",
    "data": "Model and data",
    "train": "Training",
    "optimizer": "Optimiser and learning rate",
    "schedule": "Optimiser and learning rate",
    "measure": "Measuring",
    "": "Workers and synchronisation",
}
CLUSTER_PANEL = "Emulated nodes"

RecipeArgument = Annotated[
    str,
    typer.Argument(help="Name of a built-in recipe, or a TOML file; options override its values.", metavar="[RECIPE]"),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for results.")]
# For commands that also have --output, which is easily confused with --out. The older name of --runs is --out.
Runs = Annotated[Path, typer.Option("--runs", "--out", help="Folder of stored runs and studies.")]
Json = Annotated[
    str, typer.Option("--json", help="Write the result as JSON to a file; - is standard output.", metavar="FILE")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change any recipe key: --set data.train_samples=2000. Repeatable.", metavar="KEY=VALUE"
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Also print all time limits that follow from --timeout.")]
CLUSTER_KEYS = (
    "nodes=4,cpus=0.5,bandwidth=1gbit; optional: latency=1ms, loss=0.1%, memory=2g, links=0-2:100mbit (between "
    "nodes 0 and 2), slow=3:0.5 (node 3 gets half its cpus)."
)
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help=f"Emulate nodes on this machine, each with its own network, link and CPU share: {CLUSTER_KEYS} nodes=0 "
        "disables a recipe's cluster.",
        rich_help_panel=CLUSTER_PANEL,
        metavar="KEY=VALUE,...",
        show_default=False,
    ),
]
WithoutShares = Annotated[
    bool,
    typer.Option(
        "--without-cpu-shares",
        help="Ignore cpus= and slow=, on machines where you may not limit CPU shares.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]


def _host_option(kind: Any, default: Any, flag: str, text: str, **settings: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(flag, help=text, rich_help_panel="Several hosts", **settings)], default


Trust = Annotated[
    bool, typer.Option("--trust", help="Execute code named in a stored run or study, wherever the code is.")
]

# Options and their defaults, by parameter name.
HOST_OPTIONS = {
    "launcher": _host_option(
        str,
        "",
        "--launcher",
        "How to start workers: local, emulated (with --cluster), ssh (with --hosts), by-hand (with --nnodes), "
        "torchrun, or your own file.py:Class (default: chosen by the other options).",
        metavar="NAME",
        show_default=False,
    ),
    "hosts": _host_option(
        str | None,
        None,
        "--hosts",
        "Start workers on these hosts over ssh, equally many on each: a,b,user@c.",
        metavar="A,B,...",
        show_default=False,
    ),
    "ssh": _host_option(str, "ssh", "--ssh", "ssh command and its options: 'ssh -p 2222'."),
    "remote_python": _host_option(
        str,
        "",
        "--remote-python",
        "Python interpreter on the --hosts (default: the same path as here).",
        metavar="PATH",
        show_default=False,
    ),
    "num_nodes": _host_option(
        int, 1, "--nnodes", "Number of hosts; run this command on each of them, with its --node-rank.", min=1
    ),
    "node_rank": _host_option(int, 0, "--node-rank", "Rank of this host, with --nnodes.", min=0),
    "token_file": _host_option(
        str,
        "",
        "--token-file",
        "File with a secret of at least 16 bytes, the same on all hosts and readable by you only, with --nnodes.",
        metavar="FILE",
        show_default=False,
    ),
    "master_addr": _host_option(
        str,
        "",
        "--master-addr",
        f"Address of host 0 (default: {DEFAULT_ADDRESS}; with --hosts, the address that ssh connects to).",
        show_default=False,
    ),
    "master_port": _host_option(
        int,
        0,
        "--master-port",
        f"Port that host 0 listens on (default: {DEFAULT_PORT}; with --hosts, a free port).",
        show_default=False,
    ),
}


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add to a command the options that select hosts and ports.

    The command gets the options' values as one `LaunchRequest`, in the argument `launch`.
    """

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        values = {name: arguments.pop(name) for name in HOST_OPTIONS}
        names = values.pop("hosts")
        hosts = None if names is None else tuple(word.strip() for word in names.split(","))
        command(launch=LaunchRequest(hosts=hosts, **values), **arguments)

    options = [keyword_parameter(name, *option) for name, option in HOST_OPTIONS.items()]
    return with_signature(wrapper, [*parameters_without("launch", command), *options])


def recipe_options(
    *, leave_out: tuple[str, ...], more_changes: Callable[[Mapping[str, Any]], Changes] = lambda _: {}
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an option for every recipe key that has a flag, except for keys in `leave_out`.

    The decorator also adds the argument RECIPE and the options --cluster, --without-cpu-shares and --set. The command
    gets the argument `recipe`: the recipe, changed by the options' values. `more_changes` derives further changes to
    the recipe from the other arguments of the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        keys = {
            key.replace(".", "__"): key
            for key, field in recipe_keys()
            if field.metadata["flag"] and key not in leave_out
        }

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> None:
            values = {key: arguments.pop(name) for name, key in keys.items()}
            _check_repeated(values)
            cluster_text = arguments.pop("cluster")
            # Applied after --cluster, so that --set cluster.KEY=VALUE overrides a single key of the cluster.
            changes = {} if cluster_text is None else parse_cluster(cluster_text)
            changes |= parse_set(arguments.pop("assignments") or [])
            # A repeatable option that was not given is an empty list.
            changes |= {key: value for key, value in values.items() if value is not None and value != []}
            if arguments.pop("without_shares"):
                changes |= {"cluster.cpus": None, "cluster.slow": []}
            changes |= more_changes(arguments)
            base = load_recipe(arguments.pop("recipe"))
            command(recipe=_with_torchrun_workers(base, changes, leave_out), **arguments)

        parameters = [
            keyword_parameter("recipe", RecipeArgument, DEFAULT_RECIPE),
            *(_recipe_parameter(name, key) for name, key in keys.items()),
            keyword_parameter("cluster", Cluster, None),
            keyword_parameter("without_shares", WithoutShares, False),
            keyword_parameter("assignments", Set, None),
        ]
        return with_signature(wrapper, [*parameters, *parameters_without("recipe", command)])

    return decorate


def _check_repeated(values: Mapping[str, Any]) -> None:
    """Raise UsageError if a repeatable option has an empty value, because empty values are ignored later."""
    for key, value in values.items():
        if isinstance(value, list) and not all(word.strip() for word in value):
            flag = dict(recipe_keys())[key].metadata["flag"]
            raise UsageError(f"{flag} was given without a value; leave it out, or see --help for an example")


def _recipe_parameter(name: str, key: str) -> inspect.Parameter:
    field = dict(recipe_keys())[key]
    hint = key_type(key)
    if isinstance(hint, types.UnionType):
        # An option that takes a number or a text is text; the recipe converts it.
        hint = str if str in hint.__args__ else next(part for part in hint.__args__ if part is not type(None))
    if typing.get_origin(hint) is tuple:
        hint = list[str] if field.metadata["is_repeated"] else str
    text, choices = field.metadata["help"], field.metadata["choices"]
    is_listed = all(re.search(rf"\b{re.escape(choice)}\b", text) for choice in choices)
    listed_choices = "" if is_listed else f": {', '.join(choices)}"
    option = typer.Option(
        field.metadata["flag"],
        help=f"{text[0].upper()}{text[1:]}{listed_choices}.",
        rich_help_panel=PANELS[key.rpartition(".")[0]],
        metavar="NAME" if choices else None,
        show_default=False,
    )
    return keyword_parameter(name, Annotated[hint | None, option], None)


def parameters_without(name: str, command: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters of a command with their types, except the parameter called `name`."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters if parameter.name != name]


def keyword_parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_signature(wrapper: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Return the wrapper with `parameters` as its signature. Typer makes the options from the signature."""
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return wrapper


def _with_torchrun_workers(recipe: Recipe, changes: Changes, leave_out: tuple[str, ...]) -> Recipe:
    """Return the recipe with the changes applied.

    Under torchrun, the number of workers is the number of processes that torchrun started, minus the parameter servers,
    which have the last ranks.
    """
    if not _is_torchrun():
        return recipe.replace(changes)
    num_servers = _max_servers(recipe, changes, leave_out)
    return recipe.replace({**changes, "workers": torchrun_workers(changes.get("workers"), num_servers)})


def _is_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def torchrun_workers(requested: int | None, num_servers: int = 0) -> int | None:
    """Return the number of workers that torchrun started. Without torchrun, return `requested`.

    `num_servers` is how many of torchrun's processes are parameter servers. Raises UsageError if another number of
    workers was requested, if no process is left for a worker, or if WORLD_SIZE is not a whole number.
    """
    if not _is_torchrun():
        return requested
    try:
        num_processes = int(os.environ["WORLD_SIZE"])
    except ValueError:
        raise UsageError(f"WORLD_SIZE is {os.environ['WORLD_SIZE']!r}, not a whole number") from None
    if num_processes <= num_servers:
        raise UsageError(
            f"the strategy needs {counted(num_servers, 'server')} and at least 1 worker, but torchrun started "
            f"{num_processes} {'process' if num_processes == 1 else 'processes'} in all"
        )
    workers = num_processes - num_servers
    if requested not in (None, workers):
        servers = f" ({num_processes} processes, {num_servers} of them servers)" if num_servers else ""
        raise UsageError(f"--workers {requested} conflicts with the {workers} workers that torchrun started{servers}")
    return workers


def _max_servers(recipe: Recipe, changes: Changes, leave_out: tuple[str, ...]) -> int:
    """Return the largest number of parameter servers that any strategy of the command needs.

    All strategies run with the same number of workers. Therefore torchrun must start one process for each worker, and
    one for each server of the strategy with the most servers.
    """
    from paceline.strategies import StrategySpec
    from paceline.strategies.capabilities import servers_of
    from paceline.study.entries import ONE_WORKER

    key = "strategy" if "strategies" in leave_out else "strategies"
    value = changes.get(key, getattr(recipe, key))
    texts = [word.strip() for word in value.split(",")] if isinstance(value, str) else list(value)
    codec = changes.get("codec", recipe.codec)
    strategies = [StrategySpec.parse(text, codec).build() for text in texts if text != ONE_WORKER]
    return max((servers_of(strategy, recipe.workers) for strategy in strategies), default=0)
