"""Store runs and studies on disk, one folder each; find, read, list and delete stored ones."""

from paceline.runs.store import (
    Folder,
    check_deletable,
    delete,
    nonfinite_to_none,
    timestamped,
    without_timestamp,
    write_run,
)
from paceline.runs.stored import (
    Filter,
    Stored,
    age_s,
    find,
    folder_of,
    hidden_folders,
    list_runs,
    name_of,
    read,
    resolve_folder,
    run_folders,
    size_bytes,
)

__all__ = [
    "Filter",
    "Folder",
    "Stored",
    "age_s",
    "check_deletable",
    "delete",
    "find",
    "nonfinite_to_none",
    "folder_of",
    "hidden_folders",
    "list_runs",
    "name_of",
    "read",
    "resolve_folder",
    "run_folders",
    "size_bytes",
    "timestamped",
    "without_timestamp",
    "write_run",
]
