"""Loss and accuracy on a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from paceline.comm import Comm
from paceline.data.base import Dataset
from paceline.train.losses import Objective
from paceline.train.replicas import all_equal
from paceline.train.step import Arithmetic, forward

BATCH = 250  # fixed, so that a model without running statistics is judged alike by any number of workers


@dataclass(frozen=True)
class Score:
    loss: float
    accuracy: float | None  # None where the objective has no notion of it


def evaluate(
    model: nn.Module,
    data: Dataset,
    comm: Comm | None,
    *,
    objective: Objective,
    arithmetic: Arithmetic,
    before_batch: Callable[[], None] | None = None,
) -> Score:
    """Judge this worker's replica on all of a data set; without a comm, nobody else is asked.

    Replicas that are the same bits everywhere share the work; otherwise each worker does all of it by itself.
    """
    first, stride = (comm.rank, comm.world_size) if comm is not None and all_equal(model, comm) else (0, 1)
    batches = list(torch.arange(len(data)).split(BATCH))[first::stride]
    sums = torch.zeros(4, dtype=torch.float64)  # loss, right answers, answers, samples
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
