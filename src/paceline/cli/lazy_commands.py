"""Lazy import of commands: the list of commands is parsed from their source, without importing them."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

import paceline.cli

_TYPER_ERROR: Any = typer.BadParameter.__base__  # of all errors about options and commands; typer does not export it


class CommandSummary(NamedTuple):
    """Entry of a command in the list that `paceline --help` prints."""

    name: str
    order: tuple[bool, int]  # sort key: whether the command is a group (groups come last), and its ORDER
    help: str


def read_summary(name: str, source: str) -> CommandSummary | None:
    """Read the summary of a command from the source of its module. Return None if the module is not a command.

    The help text is the constant `HELP`, else the argument `help` of the group of commands, else the docstring of the
    function with the module's name.
    """
    order: int | None = None
    texts: dict[str, str] = {}
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="ORDER")], value=ast.Constant(value=int(number))):
                order = number
            case ast.Assign(targets=[ast.Name(id="HELP")], value=value):
                texts["constant"] = str(ast.literal_eval(value))
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(keywords=keywords)) if target == name:
                texts["group"] = next(str(ast.literal_eval(word.value)) for word in keywords if word.arg == "help")
            case ast.FunctionDef(name=target) if target == name:
                texts["function"] = ast.get_docstring(node) or ""
    if order is None:
        return None
    found = next((texts[key] for key in ("constant", "group", "function") if texts.get(key)), "")
    assert found, f"command {name} has no help"
    return CommandSummary(name, ("group" in texts, order), found)


class LazyGroup(TyperGroup):
    """The group of all commands, ordered by `ORDER`. The module of a command is imported when the command is used."""

    _shows_summaries = False

    @cached_property
    def summaries(self) -> dict[str, CommandSummary]:
        folder = Path(paceline.cli.__path__[0])
        names = [entry.name for entry in pkgutil.iter_modules([str(folder)]) if not entry.ispkg]
        found = [read_summary(name, (folder / f"{name}.py").read_text(encoding="utf-8")) for name in names]
        ordered = sorted((one for one in found if one is not None), key=lambda one: one.order)
        return {one.name: one for one in ordered}

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(self.summaries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        if cmd_name not in self.summaries:
            return None
        if self._shows_summaries:
            return TyperCommand(cmd_name, help=self.summaries[cmd_name].help)
        return load_command(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._only_summaries():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._only_summaries():
            return super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.summaries:  # typer suggests similar names from `commands`
            self.commands = {name: TyperCommand(name) for name in self.summaries}
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _one_sentence_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _one_sentence_errors():
            return super().invoke(ctx)

    @contextmanager
    def _only_summaries(self) -> Iterator[None]:
        self._shows_summaries = True
        try:
            yield
        finally:
            self._shows_summaries = False


@cache
def load_command(name: str) -> Any:
    """Import the module of a command, and return the command with all its options."""
    alone = typer.Typer(rich_markup_mode="rich", add_completion=False)
    alone.callback()(lambda: None)  # with a callback, typer makes a group even of a single command
    importlib.import_module(f"{paceline.cli.__name__}.{name}").register(alone)
    group: Any = typer.main.get_command(alone)
    return group.commands[name]


@contextmanager
def _one_sentence_errors() -> Iterator[None]:
    """Raise typer's errors about commands and options in the `with` block as UsageError, with one sentence."""
    try:
        yield
    except _TYPER_ERROR as error:
        from paceline.cli.request_errors import as_usage_error

        usage_error = as_usage_error(error)
        if usage_error is None:
            raise
        raise usage_error from None
