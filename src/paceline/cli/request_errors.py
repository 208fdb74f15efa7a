"""Turn typer's errors about commands, options and arguments into Paceline's errors of one sentence."""

from __future__ import annotations

import difflib
import re
from typing import Any

from paceline.errors import UsageError
from paceline.parsing import TYPE_NAMES
from paceline.text import plain_text

_KINDS = {"int": TYPE_NAMES[int], "float": TYPE_NAMES[float], "bool": TYPE_NAMES[bool]}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def as_usage_error(error: Any) -> UsageError | None:
    """Return an error of typer as a UsageError, or None if typer should show it itself, as it does with help texts.

    Errors are told apart by the names of their classes, because typer does not export the classes.
    """
    command = error.ctx.command_path if error.ctx is not None else "paceline"
    help_hint = "" if error.ctx is None else f"see `{command} --help`"
    match type(error).__name__:
        case "NoArgsIsHelpError":
            return None
        case "NoSuchOption":
            text = f"unknown option {error.option_name!r}; {_nearest_option(error) or help_hint}".removesuffix("; ")
        case "MissingParameter":
            text = f"{command} needs {_name_of(error.param)}; {help_hint}"
        case "BadParameter" if error.param is not None:
            text = f"{_name_of(error.param)} {_wrong_value(error)}"
        case "BadOptionUsage" if "requires" in error.message:
            text = f"{error.option_name} needs a value"
        case _:
            text = _as_clause(error.format_message(), help_hint)
    return UsageError(plain_text(text))


def _nearest_option(error: Any) -> str:
    """Return a question that names the most similar option, or an empty string."""
    known = [] if error.ctx is None else [name for param in error.ctx.command.params for name in param.opts]
    near = difflib.get_close_matches(error.option_name[:100], known, n=1, cutoff=0.51)
    return f"did you mean {near[0]!r}?" if near else ""


def _name_of(parameter: Any) -> str:
    """Return the longest name of an option, or the name of an argument as the help shows it."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper())


def _wrong_value(error: Any) -> str:
    """Say what a value must be and what was given, as in "must be a whole number, not 'four'"."""
    # Typer converts values with pydantic, whose exceptions have details.
    details: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not details:
        return f"is invalid: {_as_clause(error.message)}"
    first, kind = details[0], details[0]["type"].partition("_")[0]
    limits = [f"{words} {first['ctx'][key]:g}" for key, words in _BOUNDS.items() if key in first.get("ctx", {})]
    wanted = _KINDS.get(kind) or " and ".join(limits)
    if not wanted:
        return f"is invalid: {_as_clause(error.message)}"
    return f"must be {wanted}, not {first['input']!r}" if kind in _KINDS else f"must be {wanted}, not {first['input']}"


def _as_clause(message: str, hint: str = "") -> str:
    """Return typer's message as one clause that begins with a lower-case letter and does not end in a full stop.

    `hint` is added if the message does not suggest another name.
    """
    extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL)
    text = f"unexpected argument {extra[1]!r}" if extra else message.rstrip(".")
    text = text.replace(". Did you", "; did you")
    return f"{text[:1].lower()}{text[1:]}" + (f"; {hint}" if hint and "; did you" not in text else "")
