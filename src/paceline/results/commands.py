"""Results of `paceline bench`: collectives on every comm.

Listings of strategies with their predicted bytes, codecs and models.

Emulated clusters: those that there are, and what was measured in one.

Two runs or studies side by side.

The equivalence certificate: how far every strategy is from one process that plays all workers."""

from __future__ import annotations

from typing import Any

from paceline.results.run import Target, TimeSummary
from paceline.results.study import Environment
from paceline.results.value import Interval, Json, Scalar, Value


class CommSpeedup(Value, frozen=True, kw_only=True):
    """The reference comm's time over this one's."""

    over: str
    value: float
    interval95: Interval | None


class CollectiveResult(Value, frozen=True, kw_only=True):
    """One operation of one size on one comm; an iteration lasts as long as its slowest worker takes."""

    op: str
    comm: str
    result: str  # whose memory the result is in: private, shared or plain
    world_size: int
    bytes: int
    dtype: str
    warmup: int
    iterations: int
    time_s: TimeSummary
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    copy_limit_bytes_per_s: float
    percent_of_copy_limit: float
    speedup: CommSpeedup
    correct: bool | None  # None: not checked
    wrong_workers: list[int]


class Bench(Value, frozen=True, kw_only=True):
    schema: int
    started: str
    results: list[CollectiveResult]
    copy_limit_bytes_per_s: float  # at the largest size
    reference: str
    unavailable: dict[str, str]  # comms that cannot be used here, with the reasons
    environment: Environment


class StrategyEntry(Value, frozen=True, kw_only=True):
    """One strategy for a model on so many workers; bytes and messages are predicted."""

    strategy: str
    description: str
    paper: str
    unavailable: str  # the reason, empty where it can be used
    guarantee: str
    options: dict[str, Scalar]
    workers: int
    servers: int
    sent_bytes_per_step: list[int]  # by rank
    messages_per_step: float


class CodecEntry(Value, frozen=True, kw_only=True):
    codec: str
    description: str
    is_lossless: bool
    options: dict[str, Scalar]


class ModelEntry(Value, frozen=True, kw_only=True):
    model: str
    description: str
    parameters: int
    input: str


class StrategyCatalogue(Value, frozen=True, kw_only=True):
    schema: int
    strategies: list[StrategyEntry]
    codecs: list[CodecEntry]


class ClusterFigure(Value, frozen=True, kw_only=True):
    """One figure of a cluster. `asked` is None where nothing was asked for."""

    what: str  # bandwidth in bits per second, latency in seconds one way, cpus, memory in bytes
    where: str
    asked: float | None
    measured: float
    is_met: bool


class ClusterCheck(Value, frozen=True, kw_only=True):
    schema: int
    name: str
    asked: str
    passed: bool
    figures: list[ClusterFigure]


class ListedCluster(Value, frozen=True, kw_only=True):
    name: str
    asked: str
    addresses: list[str]
    is_ready: bool
    keeper: int  # process that keeps the cluster up
    parent: int | None  # process that the cluster ends with; None: it stays until `down`
    processes: list[int]
    cgroups: list[str]


class ClusterList(Value, frozen=True, kw_only=True):
    schema: int
    clusters: list[ListedCluster]


class DiffSide(Value, frozen=True, kw_only=True):
    name: str
    folder: str
    kind: str
    status: str
    started: str


class DiffRow(Value, frozen=True, kw_only=True):
    """One strategy on both sides; pairs are A and B."""

    label: str
    labels: tuple[str, str]
    workers: tuple[int, int]
    iteration_s: tuple[float, float]
    ratio: float
    interval95: Interval | None
    interval_from: str | None  # repeats or steps
    verdict: str
    gate: str | None
    samples_per_s: tuple[float, float]
    test_accuracy: tuple[float | None, float | None]
    train_loss: tuple[float | None, float | None]
    sent_bytes: tuple[int, int]
    target: tuple[Target | None, Target | None]
    split: dict[str, tuple[float, float]] | None


class Diff(Value, frozen=True, kw_only=True):
    schema: int
    a: DiffSide
    b: DiffSide
    rows: list[DiffRow]
    only_a: list[str]
    only_b: list[str]
    recipe: dict[str, tuple[Any, Any]]  # keys in which the recipes differ
    environment: dict[str, tuple[Any, Any]]
    fail_if_slower_percent: float | None
    gate: str | None


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
