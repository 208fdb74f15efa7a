"""The reproduce study (`paceline reproduce`): repeat published experiments, and compare the results."""

from paceline.study.reproduce.experiment import Experiment, ExperimentPlan, Length, experiment_names, load_experiment
from paceline.study.reproduce.reproduce import Reproduce

__all__ = ["Experiment", "Length", "ExperimentPlan", "Reproduce", "experiment_names", "load_experiment"]
