"""How workers agree: one file per strategy, found by walking this package."""

from paceline.strategies.base import Guarantee, Strategy, Worker
from paceline.strategies.gradients import GradientAveraging
from paceline.strategies.registry import StrategySpec, available_strategies, strategies

__all__ = ["GradientAveraging", "Guarantee", "Strategy", "StrategySpec", "Worker", "available_strategies", "strategies"]
