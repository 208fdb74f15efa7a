"""Options that select a launcher and its hosts."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from paceline.launch.base import DEFAULT_ADDRESS, DEFAULT_PORT, LaunchRequest

PANEL = "Several hosts"

LauncherName = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="How workers are started: local, emulated (--cluster), ssh (--hosts), by-hand (--nnodes), torchrun, or "
        "your own file.py:Class (default: chosen by the other options).",
        rich_help_panel=PANEL,
        metavar="NAME",
        show_default=False,
    ),
]
HostNames = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        help="Start the workers on these hosts over ssh, equally many on each: a,b,user@c.",
        rich_help_panel=PANEL,
        metavar="A,B,...",
        show_default=False,
    ),
]
Ssh = Annotated[
    str, typer.Option("--ssh", help="The ssh client with its options: 'ssh -p 2222'.", rich_help_panel=PANEL)
]
RemotePython = Annotated[
    str,
    typer.Option(
        "--remote-python",
        help="Python on those hosts (default: the same path as here).",
        rich_help_panel=PANEL,
        metavar="PATH",
        show_default=False,
    ),
]
NNodes = Annotated[
    int, typer.Option("--nnodes", help="Number of hosts, each started by hand.", rich_help_panel=PANEL, min=1)
]
NodeRank = Annotated[
    int, typer.Option("--node-rank", help="Rank of this host among them.", rich_help_panel=PANEL, min=0)
]
MasterAddr = Annotated[
    str,
    typer.Option(
        "--master-addr",
        help=f"Address of host 0 (default: {DEFAULT_ADDRESS}; with --hosts, where ssh reached it).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]
MasterPort = Annotated[
    int,
    typer.Option(
        "--master-port",
        help=f"Port that host 0 listens on (default: {DEFAULT_PORT}; with --hosts, a free one).",
        rich_help_panel=PANEL,
        show_default=False,
    ),
]


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of launchers; it receives a `LaunchRequest` as `launch` instead."""
    offered = {
        "launcher": (LauncherName, ""),
        "hosts": (HostNames, None),
        "ssh": (Ssh, "ssh"),
        "remote_python": (RemotePython, ""),
        "num_nodes": (NNodes, 1),
        "node_rank": (NodeRank, 0),
        "master_addr": (MasterAddr, ""),
        "master_port": (MasterPort, 0),
    }

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in offered}
        names = given.pop("hosts")
        hosts = None if names is None else tuple(word.strip() for word in names.split(","))
        command(launch=LaunchRequest(hosts=hosts, **given), **arguments)

    options = [keyword(name, annotation, default) for name, (annotation, default) in offered.items()]
    return offering(wrapper, [*own_parameters(command, but="launch"), *options])


def own_parameters(command: Callable[..., None], *, but: str) -> list[inspect.Parameter]:
    """The parameters of a command with their types, without the one that a decorator fills in."""
    hints = typing.get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters.values()
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters if parameter.name != but]


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def offering(wrapper: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Return the wrapper with those parameters as its signature."""
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return wrapper
