"""What one worker hands to the parent at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from paceline.results.value import Json


@dataclass(frozen=True, kw_only=True)
class WorkerReport:
    """One worker's history, counters and scores. Sequences have a value per step of this worker."""

    rank: int
    steps_per_epoch: int
    iteration_s: Sequence[float]
    data_s: Sequence[float]
    loss: Sequence[float]
    num_right: Sequence[int]
    num_answers: Sequence[int]
    num_samples: Sequence[int]
    evaluations: Sequence[Json]
    train_s: float
    evaluation_s: float
    sent_bytes: int
    received_bytes: int
    num_operations: int
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None
    test_accuracy: float | None
    test_loss_before_finish: float | None
    test_accuracy_before_finish: float | None
    replica_drift: float
    parameter_digest: str
    strategy_metrics: Json
    num_parameters: int
    step_sent_bytes: Sequence[int] | None = None  # bytes sent from the start to the end of each step
    links: Sequence[Json] = ()
    samples: Sequence[Json] = ()
    at_last_step: Json | None = None  # the kernel's counters after the last step
    network_sent_bytes: int | None = None
    network_received_bytes: int | None = None
    memory_sent_bytes: int | None = None
    predicted_network_sent_bytes: int | None = None
    others: Json = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> WorkerReport:
        """The report from the plain values that crossed the process boundary."""
        known = {item.name for item in fields(cls)} - {"others"}
        others = {name: value for name, value in values.items() if name not in known}
        return cls(**{name: value for name, value in values.items() if name in known}, others=others)
