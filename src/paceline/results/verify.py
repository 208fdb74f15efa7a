"""The equivalence certificate: how far every strategy is from one process that plays all workers."""

from __future__ import annotations

from paceline.results.value import Value


class Divergence(Value, frozen=True, kw_only=True):
    """How far one replica is from where it should be, after one step."""

    optimizer: str
    rank: int
    step: int
    tensor: str
    error: float  # infinite where replicas are not equal at all, which JSON shows as null


class Certified(Value, frozen=True, kw_only=True):
    """One strategy on so many workers with one model."""

    strategy: str
    world_size: int
    servers: int | None = None
    model: str
    comm: str | None = None
    guarantee: str
    max_relative_error: float
    tolerance: float
    passed: bool  # a strategy that promises nothing has nothing to pass
    meets_guarantee: bool
    bytes_as_predicted: bool
    first_divergence: Divergence | None
    optimizers: list[str]
    steps: int


class Certificate(Value, frozen=True, kw_only=True):
    schema: int
    results: list[Certified]
