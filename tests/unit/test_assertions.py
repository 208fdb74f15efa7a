"""Every test asserts something itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from helpers import TESTS

PREFIXES = ("assert_", "check_")
CALLS = ("raises", "warns")


def functions_of_tests(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def asserts(function: ast.FunctionDef) -> bool:
    """Whether the function contains an assertion, expects an error, or calls a helper that says it asserts."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in CALLS or name.startswith(PREFIXES):
                return True
    return False


@pytest.mark.parametrize("folder", ["unit", "conformance", "integration"])
def test_every_test_asserts_something(folder: str) -> None:
    silent = [
        f"{path.name}::{function.name}"
        for path in sorted((TESTS / folder).glob("test_*.py"))
        for function in functions_of_tests(ast.parse(path.read_text()))
        if not asserts(function)
    ]
    assert not silent, f"tests that cannot fail: {silent}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("assert x", True),
        ("with pytest.raises(ValueError): f()", True),
        ("certified.assert_exact(workers)", True),
        ("check_table(text)", True),
        ("run(x)", False),
        ("compile(text, 'x', 'exec')", False),
    ],
)
def test_what_counts_as_an_assertion(body: str, expected: bool) -> None:
    [function] = functions_of_tests(ast.parse(f"def test_x():\n    {body}\n"))
    assert asserts(function) is expected
