"""The store of runs and studies."""

from paceline.runs.store import SCHEMA, STUDY_FILE, Folder, finite, list_runs, read, stamped, write_run

__all__ = ["SCHEMA", "STUDY_FILE", "Folder", "finite", "list_runs", "read", "stamped", "write_run"]
