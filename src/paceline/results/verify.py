"""The equivalence certificate: how far every strategy is from one process that plays all workers."""

from __future__ import annotations

from paceline.results.value import Json, Value

Traffic = list[tuple[str, int, float]]  # operation, peer (-1: all) and bytes of one step


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


class ReplicaStep(Value, frozen=True, kw_only=True):
    """One worker's replica after a step. Errors are set where there is an oracle, distances where they were asked."""

    step: int
    digest: str
    relative_error: float | None = None  # distance to the oracle over the oracle's length
    relative_to_path: float | None = None  # the same over the way that the oracle has moved
    tensor: str | None = None  # that is furthest from the oracle's
    distance: float | None = None  # to the mean of all replicas
    longest_update: float | None = None  # of this worker's optimiser so far


class ReplicaReport(Value, frozen=True, kw_only=True):
    """The report of one worker of a verification."""

    rank: int
    steps: list[ReplicaStep]
    start_digest: str
    final_digest: str
    metrics: Json
    counted: list[Traffic] = []  # by the comm, per step
    predicted: list[Traffic] = []  # by the strategy, per step
    final_relative_error: float | None = None
