"""What a study is in a script: a mapping that prints as a table, in a terminal and in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.text import plain_text

DASH = "\N{EN DASH}"


class Comparison(Mapping[str, Any]):
    """A study as a table: shown as one in a terminal and in a notebook, and everything in it by key.

    `rows` are plain values for a data frame, `study` is all that was measured, `folder` is where it is stored.
    """

    def __init__(self, study: dict[str, Any], folder: Path) -> None:
        self.study = study
        self.folder = folder

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One per strategy, with what most people look at first."""
        return [
            {
                **result.get("point", {}),
                "strategy": result["label"],
                "workers": result["workers"],
                "iteration_s": result["iteration_s"]["mean"],
                "samples_per_s": result["samples_per_s"],
                "sent_bytes": max((worker["sent_bytes"] for worker in result["per_worker"]), default=None),
                **{key: result["final"][key] for key in ("train_loss", "test_loss", "test_accuracy")},
                "replica_drift": result["replica_drift"],
                "guarantee": result["guarantee"],
            }
            for result in self.study["results"]
        ]

    def __getitem__(self, key: str) -> Any:
        return str(self.folder) if key == "folder" else self.study[key]

    def __iter__(self) -> Iterator[str]:
        yield from self.study
        yield "folder"

    def __len__(self) -> int:
        return len(self.study) + 1

    def __repr__(self) -> str:
        return as_text(*self._cells(), foot=f"study {self.folder}")

    def _repr_html_(self) -> str:
        head, body, _ = self._cells()
        return as_html(head, body, foot=str(self.folder))

    def _cells(self) -> tuple[list[str], list[list[str]], list[bool]]:
        from paceline.report.table import COLUMNS

        shown = [column for column in COLUMNS if column.full_name in _SHOWN]
        results = self.study["results"]
        body = [[*(column.text(result) for column in shown), *_split_cells(result)] for result in results]
        head = [*(column.full_name for column in shown), "Overlap", "Waiting"]
        return head, body, [*(column.is_number for column in shown), True, True]


class RunResult(dict[str, Any]):
    """A run's result: a plain dict whose text is a short table of its workers, not thousands of numbers."""

    def __repr__(self) -> str:
        head, body = self._cells()
        return as_text(head, body, [True] * len(head), foot=self._foot())

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return as_html(*self._cells(), foot=self._foot())

    def _foot(self) -> str:
        return f"{self['label']}, {self['steps']} steps, run {self['folder']}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        splits = {row["rank"]: row for row in (self.get("split") or {}).get("per_worker", [])}
        head = ["Worker", "Iteration, ms", "Sent, MB", "Loss test", "Accuracy test", "Overlap", "Waiting"]
        body = []
        for worker in self["per_worker"]:
            own = {"split": {"mean": splits[worker["rank"]]}} if worker["rank"] in splits else {}
            figures = [f"{1000 * worker['iteration_s']:.2f}", f"{worker['sent_bytes'] / 1e6:.2f}"]
            scores = [DASH if value is None else f"{value:.4g}" for value in (worker["test_loss"],)]
            scores.append(_share(worker["test_accuracy"], digits=1))
            body.append([str(worker["rank"]), *figures, *scores, *_split_cells(own)])
        return head, body


def _split_cells(result: Mapping[str, Any]) -> list[str]:
    """How much of its communication was hidden, and how much of a step was spent waiting for others."""
    mean = (result.get("split") or {}).get("mean")
    if not mean:
        return [DASH, DASH]
    return [_share(mean["overlap_fraction"]), _share(mean["waiting_s"] / mean["step_s"])]


def _share(value: float | None, digits: int = 0) -> str:
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def as_text(head: list[str], body: list[list[str]], is_number: list[bool], *, foot: str) -> str:
    head, *body = [[plain_text(cell) for cell in row] for row in [head, *body]]
    widths = [max(len(row[index]) for row in [head, *body]) for index in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in [head, *body]
    ]
    return "\n".join([*lines, plain_text(foot)])


def as_html(head: list[str], body: list[list[str]], *, foot: str) -> str:
    rows = [("th", head), *(("td", row) for row in body)]
    text = "".join(
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>" for tag, cells in rows
    )
    return f"<table>{text}</table><p>{html.escape(foot)}</p>"


_SHOWN = {
    "Strategy",
    "Workers",
    "Iteration, ms mean",
    "To fastest",
    "Samples/s",
    "Sent, MB",
    "Accuracy test",
    "Loss test",
    "Replica drift",
    "Guarantee",
}
