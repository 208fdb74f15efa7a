"""The contract of a strategy: what workers exchange, when, and with whom.

Servers, asynchrony, bounds and memory estimates are optional: see `capabilities.py`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import Codec, TensorSpec
from paceline.comm import Comm, Operation
from paceline.plugins import Options
from paceline.results.value import Json


class Guarantee(enum.Enum):
    """What a strategy promises about the replicas; it picks the test that the strategy must pass."""

    EXACT = "EXACT"  # after every step all replicas equal the oracle, to rounding
    LOSSY = "LOSSY"  # as exact, but for the codec's error
    PERIODIC = "PERIODIC"  # replicas are the same bits after every synchronisation, on a way of their own between
    PARTIAL = "PARTIAL"  # replicas stay within a stated distance of their mean, and no worker counts more over time
    STALE = "STALE"  # gradients may be taken at older parameters, by no more than a stated number of updates
    NONE = "NONE"  # replicas go their own ways

    @staticmethod
    def of_codec(codec: Codec) -> Guarantee:
        """The guarantee of a strategy that averages everything in every step."""
        return Guarantee.EXACT if codec.relative_error == 0 else Guarantee.LOSSY


@dataclass(frozen=True, kw_only=True)
class GradientPolicy:
    """What a strategy may assume about gradients between the end of backward and the step; the driver decides.

    The defaults describe our own loop, where only the optimiser reads gradients.
    """

    in_place_allowed: bool = True  # gradients may lie in memory that peers read; False: in this worker's own memory
    partial_allowed: bool = True  # a worker may hold only its slice of the sums; False: all sums, which may be changed
    none_where_unreached: bool = False  # a parameter that no worker's batch reached has no gradient, instead of zeros
    knows_last_backward: bool = True  # the driver says before each forward whether its backward is the step's last


OWN_LOOP = GradientPolicy()
# The user's code may clip, unscale or replace gradients, and decides alone when to call backward and step.
USER_LOOP = GradientPolicy(
    in_place_allowed=False, partial_allowed=False, none_where_unreached=True, knows_last_backward=False
)


@dataclass(kw_only=True)
class Worker:
    """The parts of a worker that its strategy may use."""

    comm: Comm
    codec: Codec
    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: nn.Module = field(init=False)  # what forward calls: the model, or what a strategy wraps around it
    weight: float = 0.0  # this worker's share of the global batch of the current step
    gradient_policy: GradientPolicy = OWN_LOOP
    servers: Comm | None = None  # workers and, behind them, servers: for strategies that have servers
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.replica = self.model
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def specs(self) -> list[TensorSpec]:
        """Sizes of the trained parameters, for predicting traffic."""
        return [TensorSpec.of(parameter) for parameter in self.parameters]


@dataclass(kw_only=True)
class Strategy(ABC):
    """One way for workers to synchronise. The first line says what happens on the wire.

    A strategy is its own configuration: dataclass fields are its options. `setup` to `finish` are called in the order
    in which they stand here; each does nothing unless a strategy needs it.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    codec: Codec  # chosen by the user beside the strategy; not an option of it

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee: ...

    @classmethod
    def unavailable(cls) -> str:
        """Why this strategy cannot be used on this machine, with any comm; empty when it can."""
        return ""

    @classmethod
    def unsupported(cls, comm: type[Comm]) -> str:  # noqa: ARG003
        """Why this strategy cannot run on a comm; empty when it can."""
        return ""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        """Raise UsageError for a number of workers or an optimiser that cannot work; before anything starts."""

    def setup(self, worker: Worker) -> None:
        """Before the first step. Replicas are equal already."""
        self.worker = worker

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """During the last backward of a step, as soon as a gradient is complete."""

    def after_backward(self) -> None: ...

    def step(self) -> None:
        self.worker.optimizer.step()

    def after_step(self) -> None: ...

    def finish(self) -> None:
        """After the last step: make replicas that may differ equal."""

    @abstractmethod
    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        """The operations of one worker in one step, predicted from sizes alone."""

    def traffic_period(self, world_size: int) -> int:  # noqa: ARG002
        """After how many steps `traffic` repeats; override it where `traffic` depends on the step."""
        return 1

    def metrics(self) -> Json:
        """What the strategy measured about itself, as plain values: shown with the run."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a restart of this worker. This is the codec's state; a strategy adds its own."""
        return {f"{_CODEC}{name}": tensor for name, tensor in self.codec.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.codec.load_state_dict(
            {name.removeprefix(_CODEC): tensor for name, tensor in state.items() if name.startswith(_CODEC)}
        )

    @classmethod
    def option_fields(cls) -> dict[str, Field[Any]]:
        """The strategy's own options by name."""
        return {item.name: item for item in fields(cls) if item.name != "codec"}

    @property
    def options(self) -> Options:
        """The values of the strategy's own options."""
        return {name: getattr(self, name) for name in self.option_fields()}


_CODEC = "codec."  # prefix of the codec's state in a strategy's state


def joined(tensors: Sequence[TensorSpec]) -> TensorSpec:
    """All tensors as one vector, in the widest of their number types."""
    return TensorSpec(sum(t.numel for t in tensors), max(t.itemsize for t in tensors))


def average_parameters(worker: Worker) -> None:
    """Every worker's parameters become their exact mean, each worker counting alike; the same bits everywhere."""
    comm = worker.comm
    if comm.world_size == 1:
        return
    with torch.no_grad():
        for parameter in worker.parameters:
            whole = parameter.detach().contiguous().clone()
            whole.div_(comm.world_size)
            comm.all_reduce(whole)
            parameter.copy_(whole)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """The gradient; zeros where this worker's batch did not reach the parameter, so that everybody sends alike."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
