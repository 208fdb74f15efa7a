"""Checks of the documentation: every strategy, option and command is described, every link resolves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline
from paceline.cli.lazy_commands import LazyGroup
from paceline.codecs import codecs
from paceline.recipe import builtin_recipes
from paceline.strategies import strategies

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", list(strategies.classes))
def test_every_strategy_is_described(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs" / "strategies.md").read_text()


@pytest.mark.parametrize("name", list(codecs.classes))
def test_every_codec_is_described(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "strategies.md").read_text()


def test_every_option_of_a_strategy_or_a_codec_is_described() -> None:
    page = (ROOT / "docs" / "strategies.md").read_text()
    for cls in [*strategies, *codecs]:
        for option in cls.option_fields():
            assert f"`{option}`" in page, f"{cls.name}:{option}"


def test_every_command_is_described() -> None:
    names = LazyGroup().list_commands(None)
    assert len(names) >= 19
    page = (ROOT / "docs" / "commands.md").read_text()
    for name in names:
        assert f"`paceline {name}" in page, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"))
def test_the_index_lists_every_page(page: str) -> None:
    assert f"]({page})" in (ROOT / "docs" / "README.md").read_text()


def test_every_strategy_says_first_what_goes_over_the_wire() -> None:
    for cls in strategies:
        first = (cls.__doc__ or "").splitlines()[0]
        assert first.endswith("."), cls.name
        assert len(first) > 30, cls.name


def test_recipes_have_a_line_for_lists() -> None:
    assert set(builtin_recipes()) == {"lenet5-mnist", "vgg11-cifar10", "resnet18-cifar10", "resnet50-folder"}
    for name, recipe in builtin_recipes().items():
        assert recipe.description, name


def test_the_public_surface_is_what_is_listed() -> None:
    assert paceline.__all__ == sorted(paceline.__all__)
    for name in paceline.__all__:
        assert getattr(paceline, name) is not None
    with pytest.raises(AttributeError):
        paceline.no_such_name  # noqa: B018
    assert set(paceline.__all__) <= set(dir(paceline))
