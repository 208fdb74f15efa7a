"""The report that a worker returns to the main process at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.results.run import Evaluation, Link, WorkerTotals
from paceline.results.value import Json


class WorkerReport(WorkerTotals, frozen=True, kw_only=True):
    """One worker's history, counters and scores. The sequences of numbers have one value per step of this worker.

    Reports from another host arrive as plain dicts, and `convert_reports` converts them.
    """

    steps_per_epoch: int
    iteration_s: Sequence[float]
    data_s: Sequence[float]
    loss: Sequence[float]
    num_right: Sequence[int]
    num_answers: Sequence[int]
    num_samples: Sequence[int]
    evaluations: Sequence[Evaluation]
    train_s: float
    evaluation_s: float
    replica_drift: float
    parameter_digest: str
    strategy_metrics: Json
    num_parameters: int
    setup_s: float | None = None
    step_sent_bytes: Sequence[int] | None = None  # bytes sent from the start of the run to the end of each step
    links: Sequence[Link] = ()
    samples: Sequence[Json] = ()  # resource samples, as in workers/RANK.jsonl
    sampling_s: float | None = None  # CPU time spent taking the resource samples
    at_last_step: Json | None = None  # kernel counters after the last step
    network_sent_bytes: int | None = None
    network_received_bytes: int | None = None
    memory_sent_bytes: int | None = None
    predicted_network_sent_bytes: int | None = None
    skipped_steps: Sequence[int] | None = None  # steps without an update; None unless --on-nonfinite is skip
    skipped_samples: int | None = None  # samples that cannot be read; None unless --on-bad-sample is skip
    diverged: str | None = None  # why training stopped before its last step
