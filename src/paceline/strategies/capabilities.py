"""Optional capabilities of a strategy: mix one in to have servers, run asynchronously, wrap the model, and so on.

Each class declares the methods that a strategy with this capability must define. The functions accept any strategy and
return a default if the strategy lacks the capability or its options disable it.
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

from paceline.codecs import TensorSpec
from paceline.errors import UsageError
from paceline.results.value import Json
from paceline.strategies.base import Strategy, Worker

STALENESS = "staleness_updates"  # key of a worker's staleness distribution in `metrics_of`


class Servers(ABC):
    """A strategy with extra processes that run `serve` instead of the training loop; `worker.servers` reaches them."""

    @abstractmethod
    def num_servers(self, num_workers: int) -> int: ...

    @abstractmethod
    def serve(self, server: Worker) -> None:
        """Run one server to its end. `server` has its own model and optimiser; `server.comm` reaches all processes."""


class Asynchronous(ABC):
    """A strategy whose workers run at their own pace: without collectives, and with the guarantee STALE."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers run at their own pace; False if options make them wait for each other."""
        return True

    @abstractmethod
    def staleness_bound(self, num_workers: int) -> int | None:
        """Return the largest possible staleness of a gradient in updates; None if there is no bound."""

    @property
    @abstractmethod
    def staleness_updates(self) -> Sequence[int]:
        """Return the staleness of each of this worker's gradients in updates, in the order of sending."""

    @abstractmethod
    def ask_all_to_stop(self) -> None:
        """Make every worker stop after its next step at the latest; called on rank 0."""

    @property
    @abstractmethod
    def is_asked_to_stop(self) -> bool:
        """Whether this worker has received a request to stop."""

    @abstractmethod
    def wait_for_others(self) -> None:
        """Wait for the slowest worker, as long as others make progress; called after this worker's last step."""


class Heartbeat(ABC):
    """A strategy whose servers or peers wait for each worker with a time limit, also while it evaluates its replica."""

    @abstractmethod
    def keep_alive(self) -> None:
        """Tell the waiting processes that this worker is alive; called between two batches of an evaluation."""


class Drifting(ABC):
    """A strategy that bounds the distance between replicas: the guarantee is PARTIAL."""

    @abstractmethod
    def drift_bound(self, num_workers: int) -> float:
        """Return the largest distance of a replica from the mean, as a multiple of the longest update of any worker."""


class Periodic(ABC):
    """A strategy that synchronises after some steps only; without it, PERIODIC means after every step."""

    @abstractmethod
    def is_synchronised(self, step: int) -> bool:
        """Whether replicas are equal after this step (counted from 0)."""


@dataclass(kw_only=True)
class Accumulating:
    """A strategy that can split a worker's batch into micro-batches and send gradients after the last (`accumulate`).

    The global batch stays the same, and so does the gradient; micro-batches need less memory.
    """

    name: ClassVar[str]

    accumulate: int = 1  # micro-batches between two synchronisations

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
        """Return the context for forward and backward of every micro-batch of a step but the last."""


class GradientBuffers(ScaledLoss):
    """A strategy that provides the memory that backward writes gradients to (in Paceline's own loop)."""

    @abstractmethod
    def zero_grad(self) -> None:
        """Clear the gradients before a step's first backward, instead of `optimizer.zero_grad()`."""

    @property
    @abstractmethod
    def hooked_parameters(self) -> list[nn.Parameter]:
        """Return the parameters for which `on_gradient` is called. Without this capability it is called for all."""


class DetectsUnreached:
    """A strategy that implements `GradientPolicy.none_where_unreached` itself; else `paceline.parallel` does."""


class ShardedOptimizer(ABC):
    """A strategy in which each worker updates a part of the model, with an optimiser that the strategy owns."""

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser that updates this worker's part and holds its state."""

    @abstractmethod
    def optimizer_share(self, num_workers: int) -> float:
        """Return the fraction of the optimiser's state that one worker holds."""


class BufferEstimate(ABC):
    """A strategy that estimates its memory, in addition to parameters, gradients and optimiser state."""

    @abstractmethod
    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int: ...


class ModelCheck(ABC):
    """A strategy that supports only some models."""

    @abstractmethod
    def check_model(self, tensors: Sequence[TensorSpec]) -> None:
        """Raise UsageError for a model of these tensors; called before anything starts."""


class TunedValues(enum.Enum):
    """Values that `tune` tries for an option. Users set them with --buckets and --periods."""

    BUCKET_MB = "bucket_mb"
    PERIOD_STEPS = "period_steps"


class Tunable:
    """A strategy that `tune` tries unless the user names strategies."""

    tuned_options: ClassVar[Mapping[str, TunedValues]] = {}  # options that `tune` varies, with their values
    is_tried: ClassVar[bool] = True  # False: a base class is tunable, but this strategy is only a baseline


_CAPABILITIES: tuple[type, ...] = (
    Servers,
    Asynchronous,
    Heartbeat,
    Drifting,
    Periodic,
    ScaledLoss,
    WrappedModel,
    GradientBuffers,
    ShardedOptimizer,
    BufferEstimate,
    ModelCheck,
)


@cache
def check_contract(cls: type[Strategy]) -> None:
    """Raise UsageError if a class defines methods of a capability without inheriting it, or lacks one of them."""
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


def as_asynchronous(strategy: Strategy) -> Asynchronous | None:
    """Return the strategy if it is asynchronous, else None."""
    return strategy if isinstance(strategy, Asynchronous) and strategy.is_asynchronous else None


def keep_alive_of(strategy: Strategy) -> Callable[[], None] | None:
    """Return the function to call between two batches of an evaluation during the run, or None."""
    return strategy.keep_alive if isinstance(strategy, Heartbeat) else None


def drift_bound_of(strategy: Strategy, num_workers: int) -> float:
    """Return the drift bound of a PARTIAL strategy."""
    if not isinstance(strategy, Drifting):
        raise UsageError(
            f"strategy {strategy.name or type(strategy).__name__} has the guarantee PARTIAL but no "
            "drift bound; add Drifting of paceline.strategies to its base classes"
        )
    return strategy.drift_bound(num_workers)


def staleness_bound_of(strategy: Strategy, num_workers: int) -> int | None:
    """Return the staleness bound of a STALE strategy; None if it has none."""
    return strategy.staleness_bound(num_workers) if isinstance(strategy, Asynchronous) else None


def is_synchronised(strategy: Strategy, step: int) -> bool:
    """Whether a PERIODIC strategy's replicas are equal after a step (counted from 0)."""
    return strategy.is_synchronised(step) if isinstance(strategy, Periodic) else True


def steps_to_synchronisation(strategy: Strategy) -> int:
    """Return the number of steps until the first synchronisation."""
    return next(step for step in range(1 << 20) if is_synchronised(strategy, step)) + 1


def micro_batches_of(strategy: Strategy) -> int:
    """Return the number of micro-batches that the strategy splits a worker's batch into."""
    return strategy.accumulate if isinstance(strategy, Accumulating) else 1


def loss_scale_of(strategy: Strategy) -> float:
    """Return the factor of the loss before backward (in Paceline's own loop)."""
    return strategy.loss_scale if isinstance(strategy, ScaledLoss) else 1.0


def no_sync_of(strategy: Strategy) -> AbstractContextManager[Any]:
    """Return the context for every micro-batch of a step but the last."""
    return strategy.no_sync() if isinstance(strategy, WrappedModel) else nullcontext()


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


def optimizer_of(strategy: Strategy) -> torch.optim.Optimizer:
    """Return the optimiser that takes this worker's steps."""
    return strategy.optimizer if isinstance(strategy, ShardedOptimizer) else strategy.worker.optimizer


def optimizer_share_of(strategy: Strategy, num_workers: int) -> float:
    """Return the fraction of the optimiser's state that one worker holds."""
    return strategy.optimizer_share(num_workers) if isinstance(strategy, ShardedOptimizer) else 1.0


def buffer_bytes_of(strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int) -> int:
    """Return the strategy's estimate of its memory on one worker; 0 if it has none."""
    return strategy.buffer_bytes(tensors, rank, world_size) if isinstance(strategy, BufferEstimate) else 0


def check_model_of(strategy: Strategy, tensors: Sequence[TensorSpec]) -> None:
    """Raise UsageError for a model that the strategy cannot train."""
    if isinstance(strategy, ModelCheck):
        strategy.check_model(tensors)


def tuned_options_of(strategy: type[Strategy]) -> Mapping[str, TunedValues]:
    """Return the options of a strategy that `tune` varies."""
    return strategy.tuned_options if issubclass(strategy, Tunable) else {}


def is_tried_by_tune(strategy: type[Strategy]) -> bool:
    """Whether `tune` tries a strategy that the user did not name."""
    return issubclass(strategy, Tunable) and strategy.is_tried


def metrics_of(strategy: Strategy) -> Json:
    """Return a strategy's own measurements, with the staleness if it is asynchronous."""
    asynchronous = as_asynchronous(strategy)
    staleness = {} if asynchronous is None else {STALENESS: distribution(asynchronous.staleness_updates)}
    return {**staleness, **strategy.metrics()}


def distribution(values: Sequence[int]) -> Json:
    """Return the count of each value, the maximum and the mean, as JSON values."""
    counts = {str(value): count for value, count in sorted(Counter(values).items())}
    return {"counts": counts, "max": max(values, default=0), "mean": statistics.fmean(values) if values else 0.0}
