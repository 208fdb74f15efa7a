"""Version check between hosts: Python, paceline and its source files, torch. Does not import torch."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import paceline

WORDS = {
    "python": "Python",
    "paceline": "paceline",
    "source": "source files of paceline with digest",
    "torch": "torch",
    "byte_order": "byte order",
}


def own_facts() -> dict[str, str]:
    """Return the versions of this interpreter and its packages."""
    try:
        torch_version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch_version = "missing"
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "paceline": paceline.__version__,
        "source": _source_digest(),
        "torch": torch_version,
        "byte_order": sys.byteorder,
    }


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """Describe the first difference; empty if all versions are equal."""
    for key, word in WORDS.items():
        if ours.get(key) != theirs.get(key):
            return f"it has {word} {theirs.get(key, 'unknown')}, this host {ours.get(key)}"
    return ""


@functools.cache
def _source_digest() -> str:
    """Digest of the source files: two working copies may have the same version number."""
    digest = hashlib.sha256()
    folder = Path(paceline.__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
