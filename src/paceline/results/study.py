"""Typed results of studies (comparisons of several runs): the fields of all studies, and of each type of study."""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.results.run import Gain, Row, RunResult
from paceline.results.value import Interval, Json, Point, Scalar, Value, empty_list, null

SCHEMA = 1
# Status of a run or study. A diverged one ended early because its loss became infinite or NaN.
RUNNING, DONE, FAILED, INTERRUPTED, DIVERGED = "running", "done", "failed", "interrupted", "diverged"


class Environment(Value, frozen=True, kw_only=True):
    """The machine that a result was measured on, its software versions, and the command line."""

    paceline: str | None = null()
    python: str | None = null()
    torch: str | None = null()
    system: str | None = null()
    machine: str | None = null()
    processor: str | None = null()
    num_cores: int | None = null()
    memory_bytes: int | None = null()
    load_average: list[float] | None = null()
    gpus: list[str] = empty_list()
    command: list[str] = empty_list()


class RunRecord(Value, frozen=True, kw_only=True):
    """Contents of the stored file of one run.

    A running, failed or interrupted run has no result. A diverged run has one if all workers stopped after the same
    step.
    """

    schema: int
    kind: str
    name: str
    started: str
    status: str
    error: str | None = None
    label: str | None = None
    result: RunResult | None = None


class Failure(Value, frozen=True, kw_only=True):
    """A combination of a study's settings that has no measurement.

    Its run was refused before it started, or failed.
    """

    label: str
    point: Point | None = None
    remedy: str | None = None
    status: str | None = None  # refused or failed
    reason: str | None = None
    repeat: int | None = None
    error: str | None = None


class StudyResult(Value, frozen=True, kw_only=True):
    """Base class of studies' results, with the fields that all studies have.

    Each type of study is a subclass. Its `study_name` equals the field `study` of its stored files, so that the loader
    finds the class for a file.
    """

    study_name: ClassVar[str] = ""

    schema: int
    kind: str
    study: str
    name: str
    started: str
    status: str
    recipe: Json
    environment: Environment
    error: str | None = None
    repeats: int | None = None
    wall_s: float | None = None
    code: dict[str, str] | None = None  # SHA-256 of the user's own files, by path
    cautions: list[str] | None = None  # reasons to doubt measurements, such as a failed measurement of the overhead
    results: list[Row] = empty_list()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        study_types[cls.study_name] = cls


study_types: dict[str, type[StudyResult]] = {}


class CompareResult(StudyResult, frozen=True, kw_only=True):
    study_name: ClassVar[str] = "compare"

    failed: list[Failure] | None = None  # strategies whose training diverged


class ScalingLimit(Value, frozen=True, kw_only=True):
    """Largest number of workers up to which the throughput of one strategy grows, in one mode (strong or weak)."""

    mode: str
    label: str
    guarantee: str
    workers: list[int]
    pays_until: int | None
    last_gain: Gain | None
    next_gain: Gain | None
    best_workers: int | None
    best_speedup: float | None
    best_speedup_interval95: Interval | None


class ScaleResult(StudyResult, frozen=True, kw_only=True):
    """Result of a scaling study.

    Mode `strong` keeps the global batch size constant, and mode `weak` the batch size of each worker. `modes` maps each
    mode to a dict with the name and value of its constant batch size.
    """

    study_name: ClassVar[str] = "scale"

    workers: list[int]
    modes: dict[str, dict[str, int]]
    num_points: int
    refused: list[Failure] = empty_list()
    failed: list[Failure] = empty_list()
    paying: list[ScalingLimit] = empty_list()


class AxisValues(Value, frozen=True, kw_only=True):
    """One recipe key that a sweep varies, and the key's values."""

    key: str
    values: list[Scalar | list[Scalar]]


class SweepResult(StudyResult, frozen=True, kw_only=True):
    study_name: ClassVar[str] = "sweep"

    vary: list[AxisValues]
    remedies: list[str]
    num_points: int
    failures: list[Failure] = empty_list()


class Candidate(Value, frozen=True, kw_only=True):
    """Result of one candidate (strategy with options and codec) in one rung (round) of tuning.

    A failed candidate has a reason and no measurements.
    """

    label: str
    end: str  # outcome of the round: kept, reference, slower, less accurate or failed
    reason: str | None = None
    strategy: str | None = None
    options: dict[str, Scalar] | None = None
    codec: str | None = None
    guarantee: str | None = None
    iteration_s: float | None = None
    iteration_s_repeats: list[float] | None = None
    versus_reference: float | None = None
    versus_reference_interval95: Interval | None = null()
    test_accuracy: float | None = null()
    test_loss: float | None = null()
    sent_bytes: int | None = None
    lost: float | None = None  # percentage points of accuracy below the reference, or percent of loss above it
    lost_interval95: Interval | None = null()
    is_within: bool | None = None
    is_reference: bool | None = None


class RungResult(Value, frozen=True, kw_only=True):
    """Result of one rung (round) of tuning, with one row per candidate."""

    rung: int
    steps: int
    repeats: int
    judged_by: str  # accuracy or loss
    margin: float
    rows: list[Candidate]


class Best(Value, frozen=True, kw_only=True):
    """The strategy that won tuning, with the command and the library call to use it."""

    label: str
    strategy: str
    options: dict[str, Scalar]
    codec: str
    guarantee: str
    iteration_s: float
    versus_reference: float
    versus_reference_interval95: Interval | None
    lost: float
    lost_interval95: Interval | None
    judged_by: str
    margin: float
    command: str | None
    library: str


class TuneResult(StudyResult, frozen=True, kw_only=True):
    study_name: ClassVar[str] = "tune"

    reference: str
    margins: dict[str, float]
    left_out: dict[str, str]
    request: Json | None = None  # the requested search space
    rungs: list[RungResult] = empty_list()
    best: Best | None = null()


FigureValue = float | int | str | list[float] | None  # a number, numbers by rank, or text


class MeasuredFigure(Value, frozen=True, kw_only=True):
    value: FigureValue
    is_extrapolated: bool


class PublishedColumn(Value, frozen=True, kw_only=True):
    """A column of a published table that a study reproduces."""

    name: str
    unit: str


class WorkerLoad(Value, frozen=True, kw_only=True):
    """Resources that one worker used in a run."""

    rank: int
    cpu_percent: float | None
    peak_rss_bytes: int | None
    network_sent_bytes: int | None
    network_received_bytes: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None


class OurRow(Value, frozen=True, kw_only=True):
    """One measured row of a reproduction, with the columns of the published table."""

    key: str
    label: str
    point: Point
    is_first_point: bool
    workers: int
    steps: int
    figures: dict[str, MeasuredFigure]
    load: list[WorkerLoad]


class PublishedRow(Value, frozen=True, kw_only=True):
    name: str
    point: Point
    published: dict[str, FigureValue]
    ours: str | None


class PublishedTable(Value, frozen=True, kw_only=True):
    source: str
    setting: str
    rows: list[PublishedRow]


class Proof(Value, frozen=True, kw_only=True):
    """Check of one strategy in a reproduction.

    `equal` is the number of synchronisations after which all ranks had equal parameters, out of `synchronisations`.
    `max_relative_error` is the largest relative distance of a rank's final parameters from those of the same training
    in one process.
    """

    strategy: str
    ranks: int
    synchronisations: int
    equal: int
    first_unequal: int | None
    max_relative_error: float
    tolerance: float
    passed: bool


class Reproduction(StudyResult, frozen=True, kw_only=True):
    study_name: ClassVar[str] = "reproduce"

    title: str
    notes: list[str]
    quantities: dict[str, PublishedColumn]
    request: Json | None = None  # arguments of the study: length, data, device, cluster
    proof: list[Proof] = empty_list()
    ours: list[OurRow] = empty_list()
    published: list[PublishedTable] = empty_list()
