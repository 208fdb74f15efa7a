"""Evaluation: loss and accuracy on a data set, and the target accuracy at which training stops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from paceline.comm import Comm
from paceline.data.base import Dataset
from paceline.strategies import Strategy
from paceline.strategies.capabilities import as_asynchronous
from paceline.train.replicas import all_equal
from paceline.train.step import Arithmetic, Objective, forward

BATCH = 250  # samples; fixed, so that BatchNorm without running statistics gives equal results with any world size


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy on a set of samples."""

    loss: float
    accuracy: float | None  # None if the objective has no accuracy


def evaluate(
    model: nn.Module,
    data: Dataset,
    comm: Comm | None,
    *,
    objective: Objective,
    arithmetic: Arithmetic,
    before_batch: Callable[[], None] | None = None,
) -> Score:
    """Evaluate this worker's replica on a whole data set.

    `comm` connects the workers. If their replicas are bitwise equal, each worker evaluates some of the batches, and the
    results are added up. Otherwise, or if `comm` is None, each worker evaluates all batches itself. `before_batch` is
    called before every batch.
    """
    first, stride = (comm.rank, comm.world_size) if comm is not None and all_equal(model, comm) else (0, 1)
    batches = list(torch.arange(len(data)).split(BATCH))[first::stride]
    sums = torch.zeros(4, dtype=torch.float64)  # loss, correct answers, answers, samples
    model.eval()
    try:
        for indices in batches:
            if before_batch is not None:
                before_batch()
            outcome = forward(model, *data.batch(indices, 0), objective=objective, arithmetic=arithmetic)
            sums += torch.tensor(
                [outcome.loss * outcome.num_samples, outcome.num_right, outcome.num_answers, outcome.num_samples]
            )
    finally:
        model.train()
    if comm is not None and stride > 1:
        with comm.uncounted():
            comm.all_reduce(sums)
    loss, right, answers, samples = sums.tolist()
    return Score(loss / samples, right / answers if answers else None)


class TargetAccuracy:
    """Stop criterion of training: an evaluation on rank 0 reaches the accuracy `accuracy` (None: never stop early).

    Rank 0 broadcasts its decision after each evaluation. Under an asynchronous strategy, which allows no collectives,
    rank 0 sends a stop request to the other workers instead.
    """

    def __init__(self, accuracy: float | None, strategy: Strategy, comm: Comm) -> None:
        self.accuracy = accuracy
        self._asynchronous, self._comm = as_asynchronous(strategy), comm
        self._is_reached = False

    def update(self, accuracy: float | None) -> None:
        """Compare an accuracy with the target. All workers must call this after every evaluation during training."""
        if self.accuracy is None:
            return
        is_enough = accuracy is not None and accuracy >= self.accuracy
        if self._asynchronous is None:
            decision = torch.tensor([float(is_enough)])
            if self._comm.world_size > 1:
                with self._comm.uncounted():
                    self._comm.broadcast(decision, root=0)
            self._is_reached = bool(decision)
        elif self._comm.rank == 0 and is_enough and not self._is_reached:
            self._is_reached = True
            self._asynchronous.ask_all_to_stop()

    @property
    def is_reached(self) -> bool:
        """Whether the target is reached, so that this worker stops after the current step."""
        if self._is_reached or self.accuracy is None or self._asynchronous is None:
            return self._is_reached
        return self._asynchronous.is_asked_to_stop
