"""The store of runs and studies."""

from paceline.runs.delete import check_deletable, delete, size_bytes
from paceline.runs.lines import run_folders, worker_files, worker_lines
from paceline.runs.select import (
    Filter,
    age_s,
    find,
    folder_of,
    model_of,
    name_of,
    place,
    recipe_of,
    results_of,
    started_at,
    status_of,
    strategies_of,
)
from paceline.runs.store import SCHEMA, STUDY_FILE, Folder, finite, list_runs, read, stamped, store_study, write_run

__all__ = [
    "SCHEMA",
    "STUDY_FILE",
    "Filter",
    "Folder",
    "age_s",
    "check_deletable",
    "delete",
    "find",
    "finite",
    "folder_of",
    "list_runs",
    "model_of",
    "name_of",
    "place",
    "read",
    "recipe_of",
    "results_of",
    "run_folders",
    "size_bytes",
    "stamped",
    "started_at",
    "status_of",
    "store_study",
    "strategies_of",
    "worker_files",
    "worker_lines",
    "write_run",
]
