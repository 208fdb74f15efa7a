"""Losses and gradients that are NaN or infinite: find them before the update, and stop training or skip the step.

Workers must take the same decision in the same step. A loss that is not finite makes its worker's gradients NaN (see
`forward_backward`), and one such gradient makes the average over workers not finite. Where all workers hold the same
average, each of them checks it, and nothing is sent. `GradientsAtStep` describes the other cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from paceline.errors import DivergedError
from paceline.strategies import Strategy
from paceline.strategies.capabilities import (
    GradientsAtStep,
    Withholding,
    as_asynchronous,
    gradients_at_step_of,
    optimizer_of,
)
from paceline.train.batchnorm import batchnorm_layers
from paceline.train.context import Context

STOP, SKIP, CONTINUE = "stop", "skip", "continue"
UNKNOWN = -1  # index of the tensor, if none is known
# Gives this worker's gradients of the current batch, computed again: one tuple for each micro-batch.
Recompute = Callable[[], Iterable[Sequence[Tensor | None]]]


class FiniteCheck:
    """Takes the optimiser's step of one worker if gradients are finite, and otherwise stops training or skips the step.

    A skipped step changes neither parameters nor optimiser state, and the running statistics of BatchNorm are restored.
    """

    def __init__(self, mode: str, strategy: Strategy, context: Context) -> None:
        """`mode` is `stop`, `skip` or `continue`. The strategy must be set up."""
        self.mode = mode
        self.skipped_steps: list[int] = []
        self.reason = ""  # why training stops: a sentence, or empty
        self._strategy, self._context, self._comm = strategy, context, context.comm
        model = strategy.worker.model
        self._parameters = strategy.worker.parameters
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._kind = gradients_at_step_of(strategy)
        if self._comm.world_size == 1 and self._kind is not GradientsAtStep.SENT:
            self._kind = GradientsAtStep.AVERAGED
        self._asynchronous = as_asynchronous(strategy) if self._comm.world_size > 1 else None
        buffers = [buffer for layer in batchnorm_layers(model) for buffer in layer.buffers()]
        self._buffers = [] if mode == CONTINUE else buffers
        self._saved = [buffer.clone() for buffer in self._buffers]

    def step_begins(self) -> None:
        """Save the running statistics, which the forward pass changes."""
        if self._buffers:
            torch._foreach_copy_(self._saved, self._buffers)

    def take_step(self, step: int, *, loss: float, has_samples: bool, recompute: Recompute) -> None:
        """Call the strategy's `step`, unless gradients are not finite.

        `loss` is this worker's loss in this step. Raises DivergedError if training has to stop and the other workers
        cannot know it.
        """
        strategy = self._strategy
        if self.mode == CONTINUE:
            strategy.step()
            return
        is_bad = not all_finite(self._gradients())
        if self._withholds:
            assert isinstance(strategy, Withholding)
            if is_bad:
                strategy.withhold()
            strategy.step()
            is_bad = strategy.was_withheld()
        else:
            if self._must_agree:
                is_bad = self._any_worker(is_bad)
            if not is_bad:
                strategy.step()
        if is_bad:
            self._react(step, loss, has_samples=has_samples, recompute=recompute)

    @property
    def is_stopped(self) -> bool:
        """Whether this worker stops after the current step."""
        if self.reason:
            return True
        return self.mode == STOP and self._asynchronous is not None and self._asynchronous.is_asked_to_stop

    @property
    def _withholds(self) -> bool:
        """Whether the strategy's `step` tells the other workers or servers that gradients are not finite."""
        if self._kind is GradientsAtStep.SENT:
            return True
        return self._kind is None and self.mode == STOP and isinstance(self._strategy, Withholding)

    @property
    def _must_agree(self) -> bool:
        """Whether workers exchange the result of the check. `stop` never does, because it is the default."""
        return self._kind is None and self.mode == SKIP

    @property
    def is_shared(self) -> bool:
        """Whether all workers know in the same step that gradients are not finite."""
        if self._kind is GradientsAtStep.SENT:
            return self._asynchronous is None
        return self._kind is GradientsAtStep.AVERAGED or self._withholds or self._must_agree

    def _gradients(self) -> list[Tensor]:
        groups = optimizer_of(self._strategy).param_groups
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]

    def _any_worker(self, is_bad: bool) -> bool:
        flag = torch.tensor([float(is_bad)])
        with self._comm.uncounted():
            self._comm.all_reduce(flag)
        return bool(flag)

    def _react(self, step: int, loss: float, *, has_samples: bool, recompute: Recompute) -> None:
        is_first = not self.skipped_steps
        if self.mode == SKIP:
            self.skipped_steps.append(step)
        # Computing gradients again takes as long as a step, so only the first skipped step is explained.
        if self.mode == STOP or is_first:
            sentence = self._sentence(step, loss, has_samples=has_samples, recompute=recompute)
        self._restore_buffers()
        if self.mode == SKIP:
            if is_first and (self._comm.rank == 0 or not self.is_shared):
                self._context.emit({"kind": "warning", "text": f"{sentence}; the update is skipped"})
            return
        sentence = f"{sentence}; use a smaller --lr, or --on-nonfinite skip"
        if self._asynchronous is not None and self._kind is GradientsAtStep.SENT:
            self._asynchronous.ask_all_to_stop()
        elif not self.is_shared:
            raise DivergedError(sentence)
        self.reason = sentence

    def _restore_buffers(self) -> None:
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._saved)

    def _sentence(self, step: int, loss: float, *, has_samples: bool, recompute: Recompute) -> str:
        """Return a sentence that names the worker, the tensor and the step."""
        if self._kind in (GradientsAtStep.OWN, GradientsAtStep.SENT):
            tensor = last_nonfinite([parameter.grad for parameter in self._parameters])
        else:
            tensor = self._recomputed(recompute)
        own = torch.tensor([float(has_samples), loss, tensor], dtype=torch.float64)
        rows = {self._comm.rank: own.tolist()}
        if self.is_shared and self._comm.world_size > 1:
            with self._comm.uncounted():
                rows = {rank: row.tolist() for rank, row in enumerate(self._comm.all_gather(own))}
        rows = {rank: row for rank, row in rows.items() if row[0]}  # others computed on samples of rank 0
        lost = [rank for rank, row in rows.items() if not math.isfinite(row[1])]
        if lost:
            return f"{self._who(lost)}: the loss is {rows[lost[0]][1]:g} in step {step}"
        culprits = [rank for rank, row in rows.items() if row[2] != UNKNOWN]
        if culprits:
            _, first_loss, index = rows[culprits[0]]
            name = self._names[int(index)]
            return f"{self._who(culprits)}: the gradient of {name} is not finite in step {step} (loss {first_loss:.4g})"
        codec = self._strategy.codec
        cause = f" (codec {codec.name} may have overflowed)" if codec.relative_error else ""
        name = self._names[max(last_nonfinite([parameter.grad for parameter in self._parameters]), 0)]
        return f"the average gradient of {name} is not finite in step {step}, although each worker's own is{cause}"

    def _recomputed(self, recompute: Recompute) -> int:
        """Return the index of a parameter whose own gradient, computed again, is not finite; UNKNOWN if there is none.

        The average has replaced this worker's own gradients.
        """
        self._restore_buffers()
        device = self._context.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return max(last_nonfinite(gradients) for gradients in recompute())

    def _who(self, ranks: Sequence[int]) -> str:
        if len(ranks) == 1:
            return f"worker {ranks[0]}"
        if len(ranks) == self._comm.world_size:
            return f"all {len(ranks)} workers"
        return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no tensor has an element that is NaN or infinite.

    The norms of all tensors are computed in one call. A norm can be infinite although the elements are finite, so the
    elements are checked one by one if a norm is not finite.
    """
    if not tensors:
        return True
    norms = torch._foreach_norm(list(tensors))
    if len({norm.dtype for norm in norms}) > 1:
        norms = tuple(norm.double() for norm in norms)
    return bool(torch.stack(norms).isfinite().all()) or last_nonfinite(tensors) == UNKNOWN


def last_nonfinite(tensors: Sequence[Tensor | None]) -> int:
    """Return the index of the last tensor with an element that is NaN or infinite, or UNKNOWN.

    Backward passes NaN on from a parameter to all parameters before it, so the last parameter is nearest to the cause.
    """
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        if tensor is not None and not bool(tensor.isfinite().all()):
            return index
    return UNKNOWN
