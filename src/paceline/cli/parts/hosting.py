"""Options of several hosts: started by hand on each, or all from here over ssh."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from paceline.errors import UsageError

PANEL = "Several hosts"
DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 29400

HostNames = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        help="Start the workers on these hosts over ssh, in even blocks: a,b,user@c.",
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
NNodes = Annotated[int, typer.Option("--nnodes", help="Hosts, each started by hand.", rich_help_panel=PANEL, min=1)]
NodeRank = Annotated[int, typer.Option("--node-rank", help="Which of them this is.", rich_help_panel=PANEL, min=0)]
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
    """Give a command the options of several hosts; it receives `nodes` instead of them."""
    hints = typing.get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "nodes"
    ]
    offered = {
        "host_names": (HostNames, None),
        "ssh": (Ssh, "ssh"),
        "remote_python": (RemotePython, ""),
        "num_nodes": (NNodes, 1),
        "node_rank": (NodeRank, 0),
        "master_addr": (MasterAddr, ""),
        "master_port": (MasterPort, 0),
    }

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        command(nodes=_nodes(*(arguments.pop(name) for name in offered)), **arguments)

    hosts = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in offered.items()
    ]
    return offering(wrapper, [*own, *hosts])


def _nodes(names: str | None, ssh: str, python: str, num_nodes: int, rank: int, address: str, port: int) -> Any:
    """Where workers are started: on hosts that are named, or here, as one of several hosts or alone."""
    from paceline.launch.hosts import Hosts
    from paceline.launch.local import Nodes

    if names is None:
        if python or ssh != "ssh":
            raise UsageError(f"{'--remote-python' if python else '--ssh'} is for --hosts, which is not given")
        is_alone = num_nodes == 1
        return Nodes(num_nodes, rank, address or DEFAULT_ADDRESS, 0 if is_alone else port or DEFAULT_PORT)
    if num_nodes > 1 or rank:
        raise UsageError("--hosts starts every host from here, --nnodes is for hosts started by hand; give one of them")
    return Hosts(tuple(word.strip() for word in names.split(",")), ssh, python, address, port)


def offering(wrapper: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """A command with those parameters, whatever it hands on."""
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # type: ignore[attr-defined]
    return wrapper
