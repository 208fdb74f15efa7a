"""Results of the Python API: mappings that print as tables, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline import results
from paceline.results import Json, StudyResult, to_json


class StudyView(Mapping[str, Any]):
    """The result of a study. It prints as a table, and maps the keys of the study's JSON to plain values.

    `rows` is a list of dicts from which a data frame can be made. `study` is the typed result
    (`study.results[0].label`), and `folder` is the folder where the study is stored.
    """

    def __init__(self, study: StudyResult, folder: Path) -> None:
        self.study = study
        self.folder = folder

    @cached_property
    def _plain(self) -> Json:
        return {**to_json(self.study), "folder": str(self.folder)}

    @property
    def rows(self) -> list[Json]:
        """The most important numbers of each result, one dict per result; a data frame can be made from the list."""
        return [
            {
                **(row.point or {}),
                "strategy": row.label,
                "workers": row.workers,
                "iteration_s": row.iteration_s.mean,
                "samples_per_s": row.samples_per_s,
                "sent_bytes": max((worker.sent_bytes for worker in row.per_worker), default=None),
                "train_loss": row.final.train_loss,
                "test_loss": row.final.test_loss,
                "test_accuracy": row.final.test_accuracy,
                "replica_drift": row.replica_drift,
                "guarantee": row.guarantee,
            }
            for row in self.study.results
        ]

    def __getitem__(self, key: str) -> Any:
        return self._plain[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._plain)

    def __len__(self) -> int:
        return len(self._plain)

    def __repr__(self) -> str:
        return _text(self.study, self.folder)

    def _repr_html_(self) -> str:
        return _html(self.study, self.folder)


class RunView(Json):
    """The result of a run: a dict that prints as a table of the workers. The key `folder` has the run's folder."""

    def __init__(self, result: results.RunResult, folder: Path) -> None:
        super().__init__({**to_json(result), "folder": str(folder)})
        self._result, self._folder = result, folder

    def __repr__(self) -> str:
        return _text(self._result, self._folder)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return _html(self._result, self._folder)


def _text(result: results.RunResult | StudyResult, folder: Path) -> str:
    from paceline.present import page_in_memory, text_renderers

    return text_renderers.as_text(page_in_memory(result, folder))


def _html(result: results.RunResult | StudyResult, folder: Path) -> str:
    from paceline.present import page_in_memory, text_renderers

    return text_renderers.as_html(page_in_memory(result, folder))
