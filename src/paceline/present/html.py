"""What makes a page self-contained: templates that escape, a policy that fetches nothing, and writing it whole."""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from paceline.files import whole_file
from paceline.runs.store import disk_errors


def templates() -> Environment:
    """Everything that is filled in is escaped; a name that is not there is an error."""
    environment = Environment(
        loader=PackageLoader("paceline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tied": _tied, "breakable": _breakable}
    return environment


def _tied(text: str) -> str:
    """Numbers stay with their units at the end of a line."""
    units = r"(?=(%|ms|s|B|kB|MB|GB|times|(worker|core|thread|repeat|step)s?)(?!\w))"
    return re.sub(rf"(?<=\d) {units}", "\N{NO-BREAK SPACE}", text)


def _breakable(text: str) -> Markup:
    """A label may be broken where its options and its codec begin."""
    return escape(text).replace(":", Markup("<wbr>:")).replace("+", Markup("<wbr>+")).replace(",", Markup(",<wbr>"))


def policy_for(scripts: Sequence[str]) -> str:
    """Only our own scripts may run and nothing may be fetched, whatever a label contains."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


@lru_cache(maxsize=1)
def packed_plotly() -> tuple[str, str]:
    """plotly.js as text that the page unpacks, less than half as long, and as itself, for its digest.

    The page's script puts it into an element of its own once it is unpacked; the policy lets it pass by its digest.
    """
    script = get_plotlyjs()
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode(), script


def template_file(name: str) -> str:
    return (resources.files("paceline.report") / "templates" / name).read_text(encoding="utf-8")


def write_whole(output: Path, text: str) -> None:
    """A page, with the folders on the way to it."""
    with disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as file:
            file.write(text)
