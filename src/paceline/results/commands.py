"""Results of commands that are not studies: bench, strategies, codecs, models, cluster, data, diff and verify."""

from __future__ import annotations

from typing import Any

from paceline.results.run import Target, TimeSummary
from paceline.results.study import Environment
from paceline.results.value import Interval, Json, Scalar, Value


class CommSpeedup(Value, frozen=True, kw_only=True):
    """Speed-up of a comm (communication backend): the time of the comm `over` divided by the time of this comm."""

    over: str
    value: float
    interval95: Interval | None


class CollectiveResult(Value, frozen=True, kw_only=True):
    """Benchmark result of one collective with one tensor size on one comm (communication backend).

    The time of a round is that of its slowest worker.
    """

    op: str
    comm: str
    result: str  # memory of the result: private per worker, shared by all workers, or plain (not allocated by the comm)
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
    """Description of one strategy, with its predicted bytes and messages for one model and number of workers."""

    strategy: str
    description: str
    paper: str
    unavailable: str  # why the strategy cannot be used here; empty if it can be used
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
    """One measured property of an emulated cluster. `asked` is the requested value, or None if there is none."""

    what: str  # bandwidth (bits per second), latency (seconds, one way), cpus (cores) or memory (bytes)
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
    keeper: int  # id of the process that keeps the cluster up
    parent: int | None  # id of the process with which the cluster ends; None: it stays until `paceline cluster down`
    processes: list[int]
    cgroups: list[str]


class ClusterList(Value, frozen=True, kw_only=True):
    schema: int
    clusters: list[ListedCluster]


class BadSampleEntry(Value, frozen=True, kw_only=True):
    split: str  # train or test
    sample: str  # path of a file, or `sample INDEX`
    reason: str


class DataCheck(Value, frozen=True, kw_only=True):
    """Result of reading every sample of a data set once. `samples` has the number of samples by split."""

    schema: int
    data: str
    samples: dict[str, int]
    bad: list[BadSampleEntry]


class DiffSide(Value, frozen=True, kw_only=True):
    name: str
    folder: str
    kind: str
    status: str
    started: str


class DiffRow(Value, frozen=True, kw_only=True):
    """Comparison of one strategy in A and B, the two runs or studies of a diff. Each pair has A's and B's value."""

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


Traffic = list[tuple[str, int, float]]  # the operations of one step: name, peer (-1: all workers) and bytes


class Divergence(Value, frozen=True, kw_only=True):
    """Error that `verify` found in one worker's parameters after one step."""

    optimizer: str
    rank: int
    step: int
    tensor: str
    error: float  # infinite (null in JSON) if replicas that must be equal differ


class CertificateRow(Value, frozen=True, kw_only=True):
    """Result of `verify` for one strategy, number of workers and model."""

    strategy: str
    world_size: int
    servers: int | None = None
    model: str
    comm: str | None = None
    guarantee: str
    max_relative_error: float
    tolerance: float
    passed: bool  # always False for a strategy without a guarantee
    meets_guarantee: bool
    bytes_as_predicted: bool
    first_divergence: Divergence | None
    optimizers: list[str]
    steps: int


class Certificate(Value, frozen=True, kw_only=True):
    schema: int
    results: list[CertificateRow]


class ReplicaStep(Value, frozen=True, kw_only=True):
    """State of one worker's parameters after a step.

    The oracle is the same training in one process. Without an oracle to compare with, the errors and `tensor` are None.
    `distance` and `longest_update` are measured only on request.
    """

    step: int
    digest: str
    relative_error: float | None = None  # distance to the oracle / norm of the oracle
    relative_to_path: float | None = None  # distance to the oracle / distance of the oracle from its initial weights
    tensor: str | None = None  # name of the tensor that is farthest from the oracle's tensor
    distance: float | None = None  # to the mean of all replicas
    longest_update: float | None = None  # norm of this worker's largest optimiser update so far


class ReplicaReport(Value, frozen=True, kw_only=True):
    """Report of a worker of `verify`: the state of its parameters and its communication operations in every step."""

    rank: int
    steps: list[ReplicaStep]
    start_digest: str
    final_digest: str
    metrics: Json
    counted: list[Traffic] = []  # operations counted by the comm, one item per step
    predicted: list[Traffic] = []  # operations predicted by the strategy, one item per step
    final_relative_error: float | None = None
