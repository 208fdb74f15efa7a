"""Modules of the package whose functions run in the parent during one small `paceline compare`, by package.

    python benchmarks/modules.py                                   # this tree
    PYTHONPATH=OTHER/src python benchmarks/modules.py              # another checkout

Functions that only run while modules are imported do not count, nor does what runs in the workers.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from types import FrameType
from typing import Any

from paceline.cli import main

WORDS = ["compare", "--strategies", "ring", "--iterations", "3", "--workers", "2", "--no-report"]


class Seen:
    """Collects the modules of the functions that are called outside imports."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._importing = threading.local()

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if event not in ("call", "return"):
            return
        depth = getattr(self._importing, "depth", 0)
        if frame.f_code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif event == "call" and depth == 0:
            name = str(frame.f_globals.get("__name__", ""))
            if name.partition(".")[0] == "paceline":
                self.modules.add(name)


def run() -> None:
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["paceline", *WORDS, "--out", folder]
        threading.setprofile(seen.profile)
        sys.setprofile(seen.profile)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
    packages = Counter(name.split(".")[1] if "." in name else name for name in seen.modules)
    print(f"{len(seen.modules)} modules: {', '.join(f'{name} {count}' for name, count in packages.most_common())}")


if __name__ == "__main__":
    run()
