"""Count the files of the package, and their lines of code, docstrings and comments."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(text: str) -> set[int]:
    """Return the numbers of all lines that belong to a docstring."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            found.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return found


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    counts = dict.fromkeys(("code", "docstrings", "comments", "empty"), 0)
    for file in files:
        text = file.read_text(encoding="utf-8")
        documented = docstring_lines(text)
        for number, line in enumerate(text.splitlines(), start=1):
            stripped = line.strip()
            if number in documented:
                counts["docstrings"] += 1
            elif not stripped:
                counts["empty"] += 1
            else:
                counts["comments" if stripped.startswith("#") else "code"] += 1
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.items())
    print(f"{len(files)} files, {sum(counts.values()):,} lines: {kinds}")


if __name__ == "__main__":
    main()
