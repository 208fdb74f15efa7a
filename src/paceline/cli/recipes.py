"""The command `recipes`: list recipes, or print one."""

from __future__ import annotations

from typing import Annotated

import typer

ORDER = 9

recipes = typer.Typer(help="List built-in recipes, or print one.", invoke_without_command=True)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from paceline.cli.output import console_for
    from paceline.present.page_parts import plain_table
    from paceline.present.terminal import say, show_tables
    from paceline.recipe import builtin_recipes

    console = console_for("")
    rows = [(name, recipe.description) for name, recipe in builtin_recipes().items()]
    show_tables(console, [plain_table(("recipe", "description"), rows)])
    say(console, "`paceline recipes show NAME > mine.toml` writes a copy that you can change and run.")


@recipes.command()
def show(name: Annotated[str, typer.Argument(help="Name of a built-in recipe, or a TOML file.")]) -> None:
    """Print a recipe as TOML, with the values of all keys."""
    from paceline.recipe import load_recipe

    print(load_recipe(name).to_toml(), end="")


def register(app: typer.Typer) -> None:
    app.add_typer(recipes, name="recipes")
