"""The command `runs`: list, show, compare and delete stored results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import Json, Out
from paceline.errors import RunError, UsageError

if TYPE_CHECKING:
    from paceline.runs import Stored

ORDER = 4

runs = typer.Typer(
    help="List stored runs and studies; show, compare or delete them.",
    invoke_without_command=True,
    rich_markup_mode="rich",
)

Name = Annotated[
    str,
    typer.Argument(
        help="A name in --out or its beginning, a folder, or last (the newest), last~1, ...", metavar="NAME"
    ),
]
OutOrParents = Annotated[Path | None, typer.Option("--out", help="Folder of stored results.", show_default=False)]
DEFAULT_OUT = Path("runs")
Model = Annotated[str, typer.Option("--model", help="Only runs of this model; * and ? are wildcards.")]
Strategy = Annotated[
    str, typer.Option("--strategy", help="Only runs with this strategy: its name, or its label with options.")
]
Status = Annotated[
    str, typer.Option("--status", help="Only runs with this status: done, failed, interrupted, diverged or unreadable.")
]
Kind = Annotated[str, typer.Option("--kind", help="Only this kind: run or study.")]
Since = Annotated[
    str, typer.Option("--since", help="Only since a time (2026-01-31, 2026-01-31T12:00) or in the last 12h, 7d.")
]
Last = Annotated[int | None, typer.Option("--last", help="Only the newest N runs and studies.", metavar="N")]


@runs.callback()
def list_stored(
    context: typer.Context,
    out: Out = DEFAULT_OUT,
    model: Model = "",
    strategy: Strategy = "",
    status: Status = "",
    kind: Kind = "",
    since: Since = "",
    last: Last = None,
    json_target: Json = "",
) -> None:
    context.obj = out
    filters = {"model": model, "strategy": strategy, "status": status, "kind": kind, "since": since, "last": last}
    if context.invoked_subcommand is None:
        _list(out, filters, json_target)
        return
    for name, value in {**filters, "json": json_target}.items():
        if value:
            raise UsageError(f"--{name} before {context.invoked_subcommand!r} applies to the list only; leave it out")


@runs.command("list")
def list_explicitly(
    context: typer.Context,
    out: OutOrParents = None,
    model: Model = "",
    strategy: Strategy = "",
    status: Status = "",
    kind: Kind = "",
    since: Since = "",
    last: Last = None,
    json_target: Json = "",
) -> None:
    """List stored runs and studies, as `paceline runs` does without a subcommand."""
    filters = {"model": model, "strategy": strategy, "status": status, "kind": kind, "since": since, "last": last}
    _list(out or context.obj, filters, json_target)


def _list(out: Path, filters: Mapping[str, Any], json_target: str) -> None:
    from paceline.cli.output import console_for, write_json
    from paceline.present.studies.runs import list_page
    from paceline.present.terminal import say, show
    from paceline.results import SCHEMA
    from paceline.runs import Filter, list_runs

    console = console_for(json_target)
    stored = list_runs(out)
    matches = Filter(**filters).apply(stored)
    if matches:
        show(console, list_page(matches))
    elif stored:
        say(console, f"No match among {len(stored)} runs and studies in {out}.")
    else:
        say(console, f"No runs in {out}: `paceline compare` makes some.")
    write_json({"schema": SCHEMA, "runs": [item.to_json() for item in matches]}, json_target)


@runs.command()
def show(context: typer.Context, name: Name, out: OutOrParents = None, json_target: Json = "") -> None:
    """Print the results of a stored run or study."""
    from paceline.cli.output import console_for, write_json
    from paceline.present import page_of
    from paceline.present.terminal import show as show_page
    from paceline.runs import find

    item = find(name, out or context.obj)
    show_page(console_for(json_target), page_of(item), with_intro=True)
    write_json(item.to_json(), json_target)


@runs.command()
def diff(
    context: typer.Context,
    a: Annotated[
        str, typer.Argument(help="Baseline: a name in --out, a folder, or last~1 (the newest but one).", metavar="A")
    ],
    b: Annotated[str, typer.Argument(help="Run or study to compare with A.", metavar="B")],
    limit: Annotated[
        str,
        typer.Option(
            "--fail-if-slower", help="Exit with 1 if B is slower by more than this, at 95 % confidence.", metavar="5%"
        ),
    ] = "",
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="With --fail-if-slower: also exit with 1 if it is uncertain whether B is slower."
        ),
    ] = False,
    out: OutOrParents = None,
    json_target: Json = "",
) -> None:
    """Compare two runs or studies: times with confidence intervals, accuracy, bytes, recipe and machine."""
    from paceline.cli.output import check_json_target, console_for, write_json
    from paceline.present.pages import report_damage
    from paceline.present.studies.runs import diff_page
    from paceline.present.terminal import show as show_page
    from paceline.runs import find
    from paceline.study.diff import CANNOT_TELL, FAILED
    from paceline.study.diff import diff as compare_stored

    check_json_target(json_target)
    most_percent = _parse_percent("--fail-if-slower", limit) if limit else None
    if strict and most_percent is None:
        raise UsageError("--strict needs --fail-if-slower; add it, or leave --strict out")
    place = out or context.obj
    items = {"A": find(a, place), "B": find(b, place)}
    with report_damage(", ".join(item.name for item in items.values())):
        difference = compare_stored(items["A"], items["B"], most_percent=most_percent)
        page = diff_page(difference, {side: item.recipe_values for side, item in items.items()})
    console = console_for(json_target)
    show_page(console, page, with_intro=True)
    write_json(difference, json_target)
    if most_percent is None:
        return
    fatal = (FAILED, CANNOT_TELL) if strict else (FAILED,)
    failed = [row.label for row in difference.rows if row.gate in fatal]
    if failed:
        unsure = " or uncertain" if strict else ""
        raise RunError(f"slower by more than {most_percent:g} %{unsure}: {', '.join(failed)}")


def _parse_percent(option: str, text: str) -> float:
    """Parse a percentage: `5%` gives 5.0. The percent sign is required, because 0.05 could be meant as a fraction."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not text.endswith("%") or not 0 <= value < 1e6:
        raise UsageError(f"{option} {text!r} is not a percentage such as 5%")
    return value


@runs.command()
def delete(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Runs and studies: names in --out, or folders.", metavar="[NAME]...")
    ] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only runs and studies older than this: 30d, 12h.", metavar="AGE")
    ] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only failed and interrupted runs and studies.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without confirmation.")] = False,
    out: OutOrParents = None,
) -> None:
    """Delete runs and studies, after confirmation."""
    from paceline.cli.output import console_for
    from paceline.present.numbers import amount
    from paceline.runs import delete as delete_folder
    from paceline.runs import size_bytes

    place, console = out or context.obj, console_for("")
    if not names and not older_than and not failed:
        raise UsageError("nothing to delete was named; give names, --older-than AGE or --failed")
    folders = _folders_to_delete(names or [], place, older_than=older_than, failed=failed)
    if not folders:
        console.print("No match: nothing was deleted.")
        return
    for folder in folders:
        console.print(f"{folder}  {amount(size_bytes(folder))}", markup=False, soft_wrap=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "nothing was deleted, because there is no terminal to confirm in; add --yes to delete without asking"
            )
        if not typer.confirm(f"Delete {'this' if len(folders) == 1 else f'these {len(folders)}'} for good?"):
            console.print("Nothing was deleted.")
            return
    for folder in folders:
        delete_folder(folder)
    console.print(f"Deleted: {len(folders)}.")


def _folders_to_delete(names: list[str], out: Path, *, older_than: str, failed: bool) -> list[Path]:
    """Return the folders that the options select, after checking that each is a run or a study."""
    from paceline.runs import age_s, check_deletable, find, list_runs, resolve_folder

    age = age_s(older_than) if older_than else None
    if names:
        folders = [find(name, out).folder if name.startswith("last") else resolve_folder(name, out) for name in names]
    else:
        folders = [item.folder for item in list_runs(out) if item.content is not None]
        folders = [folder for folder in folders if not folder.is_symlink()]
    stored = {folder: check_deletable(folder, out) for folder in dict.fromkeys(folders)}
    return [folder for folder, item in stored.items() if _is_selected(item, age, failed=failed)]


def _is_selected(item: Stored, age: float | None, *, failed: bool) -> bool:
    import time

    if failed and item.status not in ("failed", "interrupted"):
        return False
    return age is None or (item.started_at is not None and item.started_at < time.time() - age)


def register(app: typer.Typer) -> None:
    app.add_typer(runs, name="runs")
