"""Published experiments as studies: each runs here, with the published figures beside ours as a labelled reference."""

from paceline.study.reproduce.experiment import Experiment, Length, experiment_names, load_experiment
from paceline.study.reproduce.plan import Plan
from paceline.study.reproduce.study import Reproduce

__all__ = ["Experiment", "Length", "Plan", "Reproduce", "experiment_names", "load_experiment"]
