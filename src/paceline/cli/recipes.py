from __future__ import annotations

from typing import Annotated

import typer

ORDER = 9

recipes = typer.Typer(help="List recipes, or show one.", invoke_without_command=True)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is not None:
        return
    from paceline.cli.parts.options import console_for
    from paceline.cli.parts.view import make_table
    from paceline.recipe import builtin_recipes

    table = make_table("recipe", "what it is", text=("what it is",))
    for name, recipe in builtin_recipes().items():
        table.add_row(name, recipe.description)
    console_for("").print(table)
    console_for("").print("`paceline recipes show NAME > mine.toml` starts one of your own.", markup=False)


@recipes.command()
def show(name: Annotated[str, typer.Argument(help="A recipe's name, or a TOML file.")]) -> None:
    """Print a recipe with every key, as TOML."""
    from paceline.recipe import load_recipe

    print(load_recipe(name).to_toml(), end="")


def register(app: typer.Typer) -> None:
    app.add_typer(recipes, name="recipes")
