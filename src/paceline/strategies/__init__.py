"""Strategies: the ways in which data-parallel workers synchronise. Each strategy is a class in this package."""

from paceline.strategies.base import GradientPolicy, Guarantee, Strategy, Worker
from paceline.strategies.capabilities import (
    Accumulating,
    Asynchronous,
    BufferEstimate,
    DetectsUnreached,
    Drifting,
    GradientBuffers,
    GradientsAtStep,
    Heartbeat,
    KnownGradients,
    ModelCheck,
    Periodic,
    ScaledLoss,
    ServerCheckpoints,
    Servers,
    ShardedOptimizer,
    Tunable,
    Withholding,
    WrappedModel,
)
from paceline.strategies.gradients import GradientAveraging
from paceline.strategies.registry import StrategySpec, available_strategies, strategies

__all__ = [
    "Accumulating",
    "Asynchronous",
    "BufferEstimate",
    "DetectsUnreached",
    "Drifting",
    "GradientAveraging",
    "GradientBuffers",
    "GradientPolicy",
    "GradientsAtStep",
    "Guarantee",
    "Heartbeat",
    "KnownGradients",
    "ModelCheck",
    "Periodic",
    "ScaledLoss",
    "ServerCheckpoints",
    "Servers",
    "ShardedOptimizer",
    "Strategy",
    "StrategySpec",
    "Tunable",
    "Withholding",
    "Worker",
    "WrappedModel",
    "available_strategies",
    "strategies",
]
