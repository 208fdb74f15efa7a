"""Published experiments as studies: each runs here, with the published figures beside ours as a labelled reference."""

from paceline.study.reproduce.experiment import Experiment, Length, experiment_names, load_experiment
from paceline.study.reproduce.plan import Plan, prepare
from paceline.study.reproduce.study import reproduce

__all__ = ["Experiment", "Length", "Plan", "experiment_names", "load_experiment", "prepare", "reproduce"]
