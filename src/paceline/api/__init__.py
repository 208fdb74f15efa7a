"""The Python API: run, compare, scale, sweep and tune as functions, for scripts and notebooks."""

from paceline.api.notebook_view import RunView, StudyView
from paceline.api.studies import compare, run, scale, sweep, tune

__all__ = ["StudyView", "RunView", "compare", "run", "scale", "sweep", "tune"]
