"""Evaluation of a model, float or integer: loss, accuracy and predicted classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.data.base import Batch, Dataset
from paceline.train.step import Objective

BATCH = 100
MOST_CLASSES = 100
Predict = Callable[[Tensor], Tensor]  # images to scores


@dataclass(frozen=True, eq=False)
class ModelScore:
    loss: float
    accuracy: float | None
    answers: Tensor  # predicted class of every sample, int64; empty if the model is no classifier

    def agreement(self, other: ModelScore) -> float | None:
        """Return the share of samples with the same prediction; None if there are none to compare."""
        if not len(self.answers) or len(self.answers) != len(other.answers):
            return None
        return float((self.answers == other.answers).double().mean())


def floats_of(data: Dataset, indices: Tensor) -> Batch:
    """Return a batch with floating-point inputs converted to float32."""
    inputs, target = data.batch(indices, 0)
    is_float = isinstance(inputs, Tensor) and inputs.is_floating_point()
    return (inputs.float() if is_float else inputs), target


@torch.no_grad()
def score(predict: Predict, data: Dataset, objective: Objective, on_batch: Callable[[int], None]) -> ModelScore:
    """Evaluate a model on a data set; call `on_batch` with the number of samples done."""
    loss, right, answers, samples = 0.0, 0, 0, 0
    classes: list[Tensor] = []
    for indices in torch.arange(len(data)).split(BATCH):
        images, target = floats_of(data, indices)
        output = predict(images)
        loss += float(objective.loss(output, target)) * len(indices)
        correct = objective.correct(output, target)
        if correct is not None:
            right, answers = right + correct[0], answers + correct[1]
        if objective.count_correct is not None and output.dim() == 2:
            classes.append(output.argmax(1))
        samples += len(indices)
        on_batch(samples)
    found = torch.cat(classes) if classes else torch.empty(0, dtype=torch.int64)
    return ModelScore(loss / samples, right / answers if answers else None, found)


def calibration_batches(data: Dataset, num_samples: int, seed: int) -> Callable[[], Iterator[Tensor]]:
    """Return a function that yields the same random training images in batches on every call."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randperm(len(data), generator=generator)[:num_samples]

    def batches() -> Iterator[Tensor]:
        for part in indices.split(BATCH):
            yield floats_of(data, part)[0]

    return batches


def confusion(first: ModelScore, second: ModelScore, num_classes: int) -> list[list[int]]:
    """Return the confusion matrix of two models' predictions; rows are those of the first.

    A model may have more outputs than the data has classes. Empty above MOST_CLASSES, or if a model is no classifier.
    """
    if not len(first.answers):
        return []
    size = max(num_classes, *(int(score.answers.max()) + 1 for score in (first, second)))
    if size > MOST_CLASSES:
        return []
    places = first.answers * size + second.answers
    return torch.bincount(places, minlength=size**2).view(size, size).tolist()
