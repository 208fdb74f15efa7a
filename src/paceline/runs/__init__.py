"""Store of runs and studies: one folder each."""

from paceline.results import SCHEMA, STUDY_FILE
from paceline.runs.select import Filter, age_s, check_deletable, delete, find, folder_of, place, size_bytes
from paceline.runs.store import Folder, finite, stamped, store_study, unstamped, write_run
from paceline.runs.stored import UNREADABLE, Stored, list_runs, name_of, read, run_folders

__all__ = [
    "SCHEMA",
    "STUDY_FILE",
    "UNREADABLE",
    "Filter",
    "Folder",
    "Stored",
    "age_s",
    "check_deletable",
    "delete",
    "find",
    "finite",
    "folder_of",
    "list_runs",
    "name_of",
    "place",
    "read",
    "run_folders",
    "size_bytes",
    "stamped",
    "store_study",
    "unstamped",
    "write_run",
]
