"""Python functions for the commands run, compare, sweep, scale and tune, for scripts and notebooks."""

from paceline.api.notebook_view import RunView, StudyView
from paceline.api.studies import compare, run, scale, sweep, tune

__all__ = ["StudyView", "RunView", "compare", "run", "scale", "sweep", "tune"]
