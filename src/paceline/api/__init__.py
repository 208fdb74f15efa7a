"""The studies as functions, for scripts and notebooks."""

from paceline.api.shown import Comparison, RunResult
from paceline.api.studies import compare, run, scale, sweep, tune

__all__ = ["Comparison", "RunResult", "compare", "run", "scale", "sweep", "tune"]
