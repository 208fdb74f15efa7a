"""Make text from users, files and workers safe for terminals and file names."""

from __future__ import annotations

import hashlib
import re
import textwrap

# A control sequence of a terminal: colours, cursor movement, clearing the screen.
_SEQUENCE = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]")
# Control characters (C0, C1 and DEL, except line feed and tab), marks and overrides of the writing direction, and
# separators of lines and paragraphs.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# Half of a surrogate pair, from JSON or from a file name that is not UTF-8. Printing it would raise an encoding error.
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNPRINTABLE = re.compile(f"{_INVISIBLE.pattern}|{_SURROGATE.pattern}")
_LONG_WORD = re.compile(r"(\S{200})\S{100,}(\S{50})")
_LINE_BREAK = re.compile("[\t\n]+")

MOST_NAME_BYTES = 180  # file systems allow 255; callers add a timestamp, a number or a suffix


def plain_text(text: str, *, keep_lines: bool = False) -> str:
    """Remove characters and escape sequences that a terminal would act on instead of printing them.

    Each sequence of line breaks and tabs becomes one space, unless `keep_lines` is set.
    """
    if _UNPRINTABLE.search(text):
        text = _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _INVISIBLE.sub("", _SEQUENCE.sub("", text)))
    return text if keep_lines else _LINE_BREAK.sub(" ", text)


def shortened(text: str) -> str:
    """Cut the middle out of very long words, so that a message that quotes, say, 5,000 digits stays readable."""
    return _LONG_WORD.sub("\\1\N{HORIZONTAL ELLIPSIS}\\2", text)


def wrapped(text: str, width: int) -> list[str]:
    """Wrap text into lines of at most `width` characters. A word that is longer is not split.

    Lines never break between a number and its percent sign.
    """
    tied = re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", text)
    lines = textwrap.wrap(tied, width, break_long_words=False, break_on_hyphens=False) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def file_name_of(text: str, *, allowed: str = "-_.=+", other: str = "_") -> str:
    """Convert text to part of a file name: letters, digits and `allowed` stay, other characters become `other`.

    A very long name is cut and ends in a digest of the whole text, so that names stay distinct.
    """
    name = "".join(c if c.isalnum() or c in allowed else other for c in text)
    data = name.encode()
    if len(data) <= MOST_NAME_BYTES:
        return name
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{data[: MOST_NAME_BYTES - 9].decode(errors='ignore')}-{digest}"
