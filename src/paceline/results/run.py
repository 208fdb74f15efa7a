"""Typed results of one run, in total and per worker, and of one row of a study (a summary of repeats of a run)."""

from __future__ import annotations

import msgspec

from paceline.results.value import Interval, Json, Point, Scalar, Value, empty_list, null


class TimeSummary(Value, frozen=True, kw_only=True):
    """Summary of step times, in seconds."""

    mean: float
    p50: float
    p95: float
    p90: float | None = None  # absent from runs of the first versions


class Final(Value, frozen=True, kw_only=True):
    """Losses and accuracies at the end of a run.

    Accuracies are fractions, and None if the task has no accuracy. Losses are None if they are not finite.
    """

    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None


class Staleness(Value, frozen=True, kw_only=True):
    """Distribution of gradient staleness.

    The staleness of a gradient is the number of updates that other workers make after its worker has read the
    parameters and before the gradient is applied.
    """

    counts: dict[str, int]  # number of gradients by staleness
    max: int
    mean: float


class WorkerTotals(Value, frozen=True, kw_only=True):
    """Bytes that one worker sent and received in a whole run, and its losses and accuracies.

    The fields `..._before_finish` are scores of the worker's own replica, before the strategy made all replicas equal.
    """

    rank: int
    sent_bytes: int
    received_bytes: int
    num_operations: int
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    test_loss_before_finish: float | None
    test_accuracy_before_finish: float | None


class WorkerResult(WorkerTotals, frozen=True, kw_only=True):
    """Results of one worker of a run."""

    train_s: float
    parameter_digest: str
    strategy_metrics: Json
    iteration_s: float
    iteration_p50_s: float
    iteration_p95_s: float
    iteration_p90_s: float | None = None


class Curve(Value, frozen=True, kw_only=True):
    """Training curves for charts, with a selection of the steps. Each list has one value per item of `step`."""

    step: list[int]
    train_s: list[float]
    loss: list[float | None]
    accuracy: list[float | None]
    iteration_s: list[float]
    sent_bytes: list[int | None] | None = None


class Evaluation(Value, frozen=True, kw_only=True):
    """One evaluation on the test set during training, made by rank 0."""

    step: int
    epoch: int
    train_s: float
    loss: float | None
    accuracy: float | None
    sent_bytes: int | None = null()  # by all workers so far; None in a single worker's report


class Target(Value, frozen=True, kw_only=True):
    """Cost of reaching a target accuracy.

    If the target was reached, the fields from `step` to `sent_bytes` are set. Otherwise `best` is the best accuracy.
    """

    accuracy: float
    reached: bool
    best: float | None = None
    step: int | None = None
    epoch: int | None = None
    train_s: float | None = None
    sent_bytes: int | None = None
    repeats_reached: int | None = None
    repeats: int | None = None


class SplitMean(Value, frozen=True, kw_only=True):
    """Mean step time in seconds, and its parts. The parts from `compute_s` to `rest_s` add up to `step_s`.

    `overlap_s` is compute time during which a transfer is in progress; `compute_s` does not include it. `waiting_s` is
    time in which the worker waits for a slower worker, and `caused_waiting_s` is time in which other workers wait for
    this one.
    """

    step_s: float
    compute_s: float
    communication_s: float
    overlap_s: float
    waiting_s: float
    data_s: float
    rest_s: float
    overlap_fraction: float | None
    bandwidth_bytes_per_s: float | None
    phases_s: dict[str, float]
    caused_waiting_s: float


class WorkerSplit(SplitMean, frozen=True, kw_only=True):
    rank: int


class Split(Value, frozen=True, kw_only=True):
    mean: SplitMean
    per_worker: list[WorkerSplit]


class Straggler(Value, frozen=True, kw_only=True):
    """A worker whose own work takes longer than that of the others. Time blocked in communication is not included.

    `excess_s` is the time by which the worker exceeds the others in `phase`, per step.
    """

    rank: int
    phase: str  # the phase with the largest excess, or "all"
    excess_s: float
    excess_percent: float  # of the other workers' time per step
    interval95_percent: Interval
    steps: int


class TimelineSpan(Value, frozen=True, kw_only=True):
    name: str
    kind: str  # phase, op or blocked
    begin_s: float
    end_s: float
    bytes: int | None


class Lane(Value, frozen=True, kw_only=True):
    """The spans of one worker in a timeline."""

    rank: int
    spans: list[TimelineSpan]


class Timeline(Value, frozen=True, kw_only=True):
    """Phases, communication operations and blocked times of every worker in a few steps."""

    first_step: int
    lanes: list[Lane]


class WorkerResources(Value, frozen=True, kw_only=True):
    """Resource samples of one worker over time. A list is None if its resource could not be read."""

    rank: int
    time_s: list[float]
    cpu_percent: list[float | None] | None
    rss_bytes: list[int | None] | None
    disk_read_bytes: list[int | None] | None
    disk_written_bytes: list[int | None] | None
    network_sent_bytes: list[int | None] | None
    network_received_bytes: list[int | None] | None
    gpu_percent: list[float | None] | None
    gpu_memory_bytes: list[int | None] | None
    peak_rss_bytes: int | None


class Resources(Value, frozen=True, kw_only=True):
    per_worker: list[WorkerResources]


class WorkerNetwork(Value, frozen=True, kw_only=True):
    """Bytes that one worker sent and received over the network in its training steps.

    The kernel and the comm (communication backend) each count these bytes, and the strategy predicts the sent ones.
    """

    rank: int
    kernel_sent_bytes: int | None
    kernel_received_bytes: int | None
    comm_sent_bytes: int | None
    comm_received_bytes: int | None
    predicted_sent_bytes: int | None
    memory_bytes: int | None  # sent through shared memory, in addition
    retransmitted_bytes: int | None
    header_bytes: int | None
    node_sent_bytes: int | None  # by the emulated node of the worker
    node_received_bytes: int | None


class NetworkUse(Value, frozen=True, kw_only=True):
    per_worker: list[WorkerNetwork]


class Link(Value, frozen=True, kw_only=True):
    """Bytes sent from one process (worker or parameter server) to another. `medium` is `network` or `memory`."""

    source: int = msgspec.field(name="from")
    target: int = msgspec.field(name="to")
    bytes: int
    predicted_bytes: int | None
    medium: str


class Overhead(Value, frozen=True, kw_only=True):
    """Profiling overhead: by how many percent a step with profiling takes longer than a step without."""

    cost_percent: float
    interval95_percent: Interval | None
    repeats: int


class Versus(Value, frozen=True, kw_only=True):
    """The step time of a strategy divided by the step time of the strategy called `label`."""

    label: str
    ratio: float
    interval95: Interval | None
    # Set in a comparison with the fastest strategy: fastest, no difference, slower, faster, or one repeat cannot tell.
    verdict: str | None = None
    # Set in a comparison with workers that never synchronise: the step time of the slowest of these workers. `ratio` is
    # then the step time of the strategy's slowest worker, divided by `limit_s`.
    limit_s: float | None = None


class RunResult(Value, frozen=True, kw_only=True):
    """Result of one run under one strategy."""

    strategy: str
    label: str
    options: dict[str, Scalar]
    codec: str
    comm: str
    workers: int
    guarantee: str
    batchnorm: str
    steps: int
    timed_steps: int
    warmup_steps: int
    iteration_s: TimeSummary
    samples_per_s: float
    epoch_s: float | None
    epoch_without_data_s: float | None
    train_s: float
    evaluation_s: float
    total_s: float
    final: Final
    replica_drift: float | None
    replicas_equal: bool
    num_parameters: int
    per_worker: list[WorkerResult]
    curve: Curve
    servers: int = msgspec.field(default_factory=int)  # absent from early studies
    staleness_updates: Staleness | None = null()
    evaluations: list[Evaluation] = empty_list()
    target: Target | None = null()
    resources: Resources | None = null()
    network: NetworkUse | None = null()
    split: Split | None = null()
    stragglers: list[Straggler] | None = null()  # None: not measured, or too few steps or workers
    timeline: Timeline | None = null()
    links: list[Link] | None = null()
    skipped_steps: int | None = None  # steps in which a worker took no update; None unless --on-nonfinite is skip
    skipped_samples: int | None = None  # unreadable samples that were left out; None unless --on-bad-sample is skip


class Row(RunResult, frozen=True, kw_only=True):
    """One row of a study: one strategy with one combination of the varied settings, and comparisons with other rows.

    Step times, throughput and total times are medians over the repeats. Most other values are those of the repeat with
    the median step time.
    """

    iteration_mean_s_repeats: list[float]
    slowest_mean_s_repeats: list[float] = empty_list()
    iteration_mean_s_interval95: Interval | None = null()
    repeats: int
    versus_fastest: Versus | None = None
    versus_none: Versus | None = None
    speedup: float | None = None
    speedup_interval95: Interval | None = null()
    efficiency: float | None = None
    measuring: Overhead | None = null()
    # Set only by some studies.
    point: Point | None = None
    batch_size: int | None = None
    is_within: bool | None = None
    remedy: str | None = None
    scaling: Scaling | None = None
    memory: MemoryUse | None = None


class Gain(Value, frozen=True, kw_only=True):
    """Throughput with `workers` workers, divided by the throughput with fewer workers (`over_workers`)."""

    workers: int
    over_workers: int
    ratio: float
    interval95: Interval | None
    verdict: str


class Scaling(Value, frozen=True, kw_only=True):
    """Comparison of one row of a scaling study with one worker and with the next smaller number of workers."""

    reference_s: float | None = null()
    ideal_s: float | None = null()
    speedup: float | None = null()
    speedup_interval95: Interval | None = null()
    efficiency: float | None = null()
    efficiency_interval95: Interval | None = null()
    beyond_ideal_s: float | None = null()
    beyond_ideal_s_interval95: Interval | None = null()
    compute_s: float | None = null()
    communication_s: float | None = null()
    overlap_s: float | None = null()
    waiting_s: float | None = null()
    data_s: float | None = null()
    rest_s: float | None = null()
    communication_share: float | None = null()
    gain: Gain | None = null()


class MemoryUse(Value, frozen=True, kw_only=True):
    """Memory of a run in bytes: the prediction of `paceline sweep`, and the highest peak measured in any worker."""

    predicted: dict[str, int] | None
    peak_rss_bytes: int | None
