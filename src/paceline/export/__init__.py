"""Export of stored runs to CSV, Parquet, TensorBoard and MLflow.

Each format has a module with a function `write(sources, folder)`. The module is imported when the format is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError, unknown
from paceline.export.tables import ExportSource
from paceline.results import RUNNING
from paceline.runs import Stored, read, run_folders
from paceline.runs.store import disk_errors
from paceline.worker_files import worker_files


@dataclass(frozen=True)
class Format:
    """An export format: the module that writes it, and the packages that the module needs."""

    module: str
    packages: tuple[str, ...] = ()  # required to write this format
    extra: str = ""  # the extra of paceline that installs the packages
    adds: bool = False  # whether runs can be added to an existing folder; other formats need a new or empty one

    def check(self, name: str) -> None:
        missing = [package for package in self.packages if importlib.util.find_spec(package) is None]
        if missing:
            raise UsageError(
                f"--to {name} needs {' and '.join(missing)}, not installed here: pip install 'paceline[{self.extra}]'"
            )


FORMATS = {
    "csv": Format("paceline.export.csv_files"),
    "parquet": Format("paceline.export.parquet", ("pyarrow",), "parquet"),
    "tensorboard": Format("paceline.export.tensorboard", ("tensorboard",), "tensorboard"),
    "mlflow": Format("paceline.export.mlflow_store", ("mlflow",), "mlflow", adds=True),
}


def sources_of(stored: Stored) -> list[ExportSource]:
    """Return the runs to export: a stored run itself, or the runs of a stored study.

    Running ones and runs without workers' files are left out. Raises UsageError if no run remains.
    """
    folder = stored.folder
    found = []
    for inner in run_folders(folder):
        item = stored if inner == folder else read(inner)
        if item.status != RUNNING and worker_files(inner):
            label = item.results[0].label if item.results else item.requested_label
            found.append(ExportSource(inner.name, label, inner, item.started_at or 0.0, item.recipe_values))
    if not found and stored.status == RUNNING:
        raise UsageError(f"{folder.name!r} is running; its measurements can be exported when a run has ended")
    if not found:
        raise UsageError(f"{folder.name!r} has no worker files to export")
    return found


def export(sources: Sequence[ExportSource], to: str, output: Path) -> Path:
    """Write runs to the folder `output` in the format `to`, and return the folder.

    The format `mlflow` adds the runs to the folder, which may already contain other runs. For all other formats the
    folder must be new or empty. It is written under a temporary name, and renamed when it is complete.
    """
    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    form = FORMATS[to]
    form.check(to)
    if output.exists() and not output.is_dir():
        raise UsageError(f"-o {str(output)!r} is a file; name a folder")
    if form.adds:
        _write(form, sources, output)
        return output
    if output.is_dir() and any(output.iterdir()):
        raise UsageError(f"-o {str(output)!r} is not empty; name a new folder")
    with disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}.", suffix=".part"))
    try:
        _write(form, sources, partial)
        with disk_errors(output):
            partial.chmod(0o777 & ~_umask())
            partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return output


def _write(form: Format, sources: Sequence[ExportSource], folder: Path) -> None:
    with disk_errors(folder):
        importlib.import_module(form.module).write(sources, folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
