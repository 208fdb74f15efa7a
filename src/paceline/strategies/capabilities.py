"""Capabilities: mix-in classes for optional features of strategies, such as servers, asynchrony or a wrapped model.

Each class declares the methods that a strategy with this feature must define. The training loop and other callers use
the functions below, which accept any strategy and return a default if it lacks the capability.
"""

from __future__ import annotations

import enum
import inspect
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import torch
from torch import nn

from paceline.checkpoint import CheckpointRequest
from paceline.codecs import TensorSpec
from paceline.errors import UsageError
from paceline.results.value import Json
from paceline.strategies.base import Strategy, Worker

STALENESS = "staleness_updates"  # key of a worker's staleness distribution in `metrics_of`


class Servers(ABC):
    """A strategy with extra processes (servers) that run `serve` instead of the training loop.

    Workers exchange messages with servers through the comm `worker.servers`.
    """

    @abstractmethod
    def num_servers(self, num_workers: int) -> int: ...

    @abstractmethod
    def serve(self, server: Worker) -> None:
        """Run one server until training ends. `server` has its own model and optimiser.

        `server.comm` connects the server to all workers and to the other servers.
        """


class ServerCheckpoints(ABC):
    """A strategy whose servers can write their part of a checkpoint, and restore it."""

    @abstractmethod
    def save_servers(self, request: CheckpointRequest) -> None:
        """Ask all servers to write their part of a checkpoint.

        Called on every worker between the same two steps. A synchronous server writes its state between these steps.
        """

    @abstractmethod
    def restore_servers(self, request: CheckpointRequest) -> None:
        """Ask all servers to restore their part of a checkpoint, and wait for them.

        Called on every worker before its first step, after the worker's own state is restored.
        """


class Asynchronous(ABC):
    """A strategy whose workers run at their own pace: without collectives, and with the guarantee STALE.

    The staleness of a gradient is the number of updates by other workers after the gradient's worker received the
    parameters and before the gradient is applied.
    """

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers run at their own pace; False if the options of this strategy make them synchronous."""
        return True

    @abstractmethod
    def staleness_bound(self, num_workers: int) -> int | None:
        """Return the largest possible staleness of a gradient, in updates; None if there is no bound."""

    @property
    @abstractmethod
    def staleness_updates(self) -> Sequence[int]:
        """Return the staleness, in updates, of this worker's applied gradients: one value per server and step."""

    @abstractmethod
    def ask_all_to_stop(self) -> None:
        """Ask every worker to stop; each worker stops after its next step at the latest. Called on rank 0."""

    @property
    @abstractmethod
    def is_asked_to_stop(self) -> bool:
        """Whether this worker has received a request to stop."""

    @abstractmethod
    def wait_for_others(self) -> None:
        """Wait until all workers have taken their last step; called after this worker's last step.

        The time limit of communication must not end this wait while other workers make progress.
        """


class Heartbeat(ABC):
    """A strategy whose servers or peers stop waiting for a silent worker after a time limit, even in an evaluation."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Tell the waiting processes that this worker is alive; called before each batch of an evaluation."""


class Drifting(ABC):
    """A strategy with the guarantee PARTIAL: replicas differ, but their distance from the mean replica has a bound."""

    @abstractmethod
    def drift_bound(self, num_workers: int) -> float:
        """Return an upper bound on a replica's distance from the mean replica.

        The bound is relative to the largest norm of an optimiser update.
        """


class Periodic(ABC):
    """A strategy that synchronises only after some steps.

    A strategy with the guarantee PERIODIC that does not inherit from this class synchronises after every step.
    """

    @abstractmethod
    def is_synchronised(self, step: int) -> bool:
        """Return whether replicas are equal after this step (counted from 0)."""


@dataclass(kw_only=True)
class Accumulating:
    """A strategy that can split a worker's batch into micro-batches and synchronise only after the last of them.

    The split changes neither the global batch nor the gradient of a step. Micro-batches need less memory.
    """

    name: ClassVar[str]

    accumulate: int = 1  # micro-batches per synchronisation

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise UsageError(f"option accumulate of strategy {self.name} must be at least 1, not {self.accumulate}")


class ScaledLoss(ABC):
    """A strategy that needs the loss multiplied by `loss_scale` before backward (in Paceline's own loop)."""

    @property
    @abstractmethod
    def loss_scale(self) -> float: ...


class WrappedModel(ScaledLoss):
    """A strategy that replaces `worker.replica` with a module that synchronises gradients during backward."""

    @abstractmethod
    def no_sync(self) -> AbstractContextManager[Any]:
        """Return a context in which backward does not synchronise, for all micro-batches of a step but the last."""


class GradientBuffers(ScaledLoss):
    """A strategy that, in Paceline's own loop, provides the memory to which backward writes gradients."""

    @abstractmethod
    def zero_grad(self) -> None:
        """Clear the gradients before a step's first backward, instead of `optimizer.zero_grad()`."""

    @property
    @abstractmethod
    def hooked_parameters(self) -> list[nn.Parameter]:
        """Return the parameters for which `on_gradient` is called (without this class: for all)."""


class DetectsUnreached:
    """A strategy that can set `grad` to None for each parameter for which no worker has a gradient.

    `GradientPolicy.none_where_unreached` requires these None values. If a strategy that averages gradients does not
    inherit from this class, `paceline.parallel` sets them instead, which takes one more all-reduce.
    """


class GradientsAtStep(enum.Enum):
    """What the gradients of a worker's parameters are when `step` is called."""

    AVERAGED = "averaged"  # the averages over workers, bit-identical on all workers
    OWN = "own"  # this worker's own; `step` updates its replica with them, and sends nothing
    SENT = "sent"  # this worker's own; `step` sends them to servers (the strategy must be `Withholding`)


class KnownGradients(ABC):
    """A strategy that states what gradients are when `step` is called, which decides how they are checked."""

    @property
    @abstractmethod
    def gradients_at_step(self) -> GradientsAtStep: ...


class Withholding(ABC):
    """A strategy whose `step` can tell servers or the other workers that this worker's gradients are not finite."""

    @abstractmethod
    def withhold(self) -> None:
        """Mark this worker's gradients as not finite. Called before `step`, which must not use them."""

    @abstractmethod
    def was_withheld(self) -> bool:
        """Return whether a worker withheld its gradients from the latest `step`; if asynchronous, whether this did."""


class ShardedOptimizer(ABC):
    """A strategy that creates an optimiser on each worker, to update only this worker's slice of the parameters."""

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser that updates this worker's slice of the parameters and holds the state for it."""

    @abstractmethod
    def optimizer_share(self, num_workers: int) -> float:
        """Return the fraction of the optimiser's state that one worker holds."""


class BufferEstimate(ABC):
    """A strategy that estimates how much memory it needs besides parameters, gradients and optimiser state."""

    @abstractmethod
    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int: ...


class ModelCheck(ABC):
    """A strategy that supports only some models."""

    @abstractmethod
    def check_model(self, tensors: Sequence[TensorSpec]) -> None:
        """Raise UsageError if a model with these parameters is not supported; called before anything starts."""


class TunedValues(enum.Enum):
    """A list of values that `paceline tune` tries for an option. Users set it with --buckets or --periods."""

    BUCKET_MB = "bucket_mb"
    PERIOD_STEPS = "period_steps"


class Tunable:
    """A strategy that `paceline tune` tries if the user names no strategies, unless `is_tried` is False."""

    tuned_options: ClassVar[Mapping[str, TunedValues]] = {}  # options that `tune` varies, and their values
    is_tried: ClassVar[bool] = True  # False: not tried by default, although a base class is tunable


_CAPABILITIES: tuple[type, ...] = (
    Servers,
    ServerCheckpoints,
    Asynchronous,
    Heartbeat,
    Drifting,
    Periodic,
    ScaledLoss,
    WrappedModel,
    GradientBuffers,
    KnownGradients,
    Withholding,
    ShardedOptimizer,
    BufferEstimate,
    ModelCheck,
)


@cache
def check_contract(cls: type[Strategy]) -> None:
    """Raise UsageError if a strategy class does not implement its capabilities correctly.

    A class that defines a method of a capability, such as `serve`, must inherit from the capability's class. It must
    also define all abstract methods of its base classes.
    """
    for capability in _CAPABILITIES:
        members = [name for name in vars(capability) if not name.startswith("_") and hasattr(cls, name)]
        if members and not issubclass(cls, capability):
            raise UsageError(
                f"strategy class {cls.__name__} defines {members[0]} but not the capability that it belongs to; "
                f"add {capability.__name__} of paceline.strategies to its base classes"
            )
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise UsageError(f"strategy class {cls.__name__} must define {missing}")


def servers_of(strategy: Strategy, num_workers: int) -> int:
    """Return how many servers a strategy needs for this number of workers."""
    return strategy.num_servers(num_workers) if isinstance(strategy, Servers) else 0


def server_checkpoints_of(strategy: Strategy) -> ServerCheckpoints | None:
    """Return the strategy if its servers can write and restore checkpoints, else None."""
    return strategy if isinstance(strategy, ServerCheckpoints) else None


def as_asynchronous(strategy: Strategy) -> Asynchronous | None:
    """Return the strategy if it is asynchronous, else None."""
    return strategy if isinstance(strategy, Asynchronous) and strategy.is_asynchronous else None


def keep_alive_of(strategy: Strategy) -> Callable[[], None] | None:
    """Return the function to call before each batch of an evaluation during training.

    Returns None if the strategy is not a `Heartbeat`.
    """
    return strategy.keep_alive if isinstance(strategy, Heartbeat) else None


def drift_bound_of(strategy: Strategy, num_workers: int) -> float:
    """Return the drift bound of a PARTIAL strategy; raise UsageError if it does not define one (see `Drifting`)."""
    if not isinstance(strategy, Drifting):
        raise UsageError(
            f"strategy {strategy.name or type(strategy).__name__} has the guarantee PARTIAL but no "
            "drift bound; add Drifting of paceline.strategies to its base classes"
        )
    return strategy.drift_bound(num_workers)


def staleness_bound_of(strategy: Strategy, num_workers: int) -> int | None:
    """Return the largest possible staleness of a gradient, in updates; None if the strategy has no bound."""
    return strategy.staleness_bound(num_workers) if isinstance(strategy, Asynchronous) else None


def is_synchronised(strategy: Strategy, step: int) -> bool:
    """Return whether a PERIODIC strategy's replicas are equal after a step (counted from 0)."""
    return strategy.is_synchronised(step) if isinstance(strategy, Periodic) else True


def steps_to_synchronisation(strategy: Strategy) -> int:
    """Return the number of steps up to and including the first synchronisation; 1 if there is one in every step."""
    return next(step for step in range(1 << 20) if is_synchronised(strategy, step)) + 1


def micro_batches_of(strategy: Strategy) -> int:
    """Return the number of micro-batches that the strategy splits a worker's batch into."""
    return strategy.accumulate if isinstance(strategy, Accumulating) else 1


def loss_scale_of(strategy: Strategy) -> float:
    """Return the factor by which Paceline's own loop multiplies the loss before backward."""
    return strategy.loss_scale if isinstance(strategy, ScaledLoss) else 1.0


def no_sync_of(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return the context for all micro-batches of a step except the last one.

    For a `WrappedModel`, backward does not synchronise in this context. For other strategies the context does nothing.
    """
    return strategy.no_sync() if isinstance(strategy, WrappedModel) else nullcontext()


def as_wrapped(strategy: Strategy) -> WrappedModel | None:
    """Return the strategy if it replaces the module that forward is called on, else None."""
    return strategy if isinstance(strategy, WrappedModel) else None


def zero_grad(strategy: Strategy) -> None:
    """Clear gradients before a step's first backward (in Paceline's own loop)."""
    if isinstance(strategy, GradientBuffers):
        strategy.zero_grad()
    else:
        strategy.worker.optimizer.zero_grad()


def hooked_parameters_of(strategy: Strategy) -> list[nn.Parameter]:
    """Return the parameters for which Paceline's own loop calls `on_gradient`."""
    if isinstance(strategy, GradientBuffers):
        return strategy.hooked_parameters
    return [] if type(strategy).on_gradient is Strategy.on_gradient else strategy.worker.parameters


def gradients_at_step_of(strategy: Strategy) -> GradientsAtStep | None:
    """Return what the gradients are when `step` is called, or None if the strategy does not state it."""
    return strategy.gradients_at_step if isinstance(strategy, KnownGradients) else None


def optimizer_of(strategy: Strategy) -> torch.optim.Optimizer:
    """Return the optimiser that updates parameters on this worker: the strategy's own, or else the user's."""
    return strategy.optimizer if isinstance(strategy, ShardedOptimizer) else strategy.worker.optimizer


def optimizer_share_of(strategy: Strategy, num_workers: int) -> float:
    """Return the fraction of the optimiser's state that one worker holds."""
    return strategy.optimizer_share(num_workers) if isinstance(strategy, ShardedOptimizer) else 1.0


def buffer_bytes_of(strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int) -> int:
    """Return a strategy's estimate of its buffers on worker `rank`, in bytes.

    Returns 0 if the strategy is not a `BufferEstimate`.
    """
    return strategy.buffer_bytes(tensors, rank, world_size) if isinstance(strategy, BufferEstimate) else 0


def check_model_of(strategy: Strategy, tensors: Sequence[TensorSpec]) -> None:
    """Raise UsageError for a model that the strategy cannot train."""
    if isinstance(strategy, ModelCheck):
        strategy.check_model(tensors)


def tuned_options_of(strategy: type[Strategy]) -> Mapping[str, TunedValues]:
    """Return the options that `tune` varies for a strategy, each with the list of values that `tune` tries."""
    return strategy.tuned_options if issubclass(strategy, Tunable) else {}


def is_tried_by_tune(strategy: type[Strategy]) -> bool:
    """Return whether `tune` tries a strategy by default, when the user names no strategies."""
    return issubclass(strategy, Tunable) and strategy.is_tried


def metrics_of(strategy: Strategy) -> Json:
    """Return a strategy's own measurements and, if the strategy is asynchronous, the distribution of the staleness."""
    asynchronous = as_asynchronous(strategy)
    staleness = {} if asynchronous is None else {STALENESS: distribution(asynchronous.staleness_updates)}
    return {**staleness, **strategy.metrics()}


def distribution(values: Sequence[int]) -> Json:
    """Return how often each value occurs, and the maximum and mean of all values. Without values, both are 0."""
    counts = {str(value): count for value, count in sorted(Counter(values).items())}
    return {"counts": counts, "max": max(values, default=0), "mean": statistics.fmean(values) if values else 0.0}
