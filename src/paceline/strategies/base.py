"""The interface of a strategy: how data-parallel workers synchronise gradients or weights in each training step.

Optional features, such as server processes or memory estimates, are mixed in from `capabilities.py`.
"""

from __future__ import annotations

import enum
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import Codec, TensorSpec
from paceline.comm import Comm, Counter, Operation
from paceline.plugins import Options
from paceline.results.value import Json


class Guarantee(enum.Enum):
    """What a strategy guarantees about the workers' replicas. The value selects the strategy's conformance test.

    EXACT is defined by a comparison with the oracle: one process that trains on the global batch of all workers.
    """

    EXACT = "EXACT"  # after every step all replicas equal the oracle, to rounding
    LOSSY = "LOSSY"  # as EXACT, plus the error of the codec
    PERIODIC = "PERIODIC"  # replicas are bit-identical after every synchronisation, and differ in the steps between
    PARTIAL = "PARTIAL"  # replicas stay within a bounded distance of their mean; over time all have equal influence
    STALE = "STALE"  # gradients may be computed at older parameters; a strategy may bound their age in updates
    NONE = "NONE"  # replicas are not synchronised

    @staticmethod
    def of_codec(codec: Codec) -> Guarantee:
        """Return the guarantee of a strategy that averages all gradients in every step with this codec."""
        return Guarantee.EXACT if codec.relative_error == 0 else Guarantee.LOSSY


@dataclass(frozen=True, kw_only=True)
class GradientPolicy:
    """Rules that a training loop imposes on how a strategy handles gradients.

    The defaults are the rules of Paceline's own loop, where only the optimiser reads gradients.
    """

    in_place_allowed: bool = True  # gradients may be stored in memory that peers read; False: in private memory only
    partial_allowed: bool = True  # a worker may hold its slice of the sums only; False: all sums, writable
    none_where_unreached: bool = False  # a parameter that no worker's backward used gets grad None, not zeros
    knows_last_backward: bool = True  # the strategy knows before each forward whether its backward is the step's last


OWN_LOOP = GradientPolicy()
# The user's code may clip, unscale or replace gradients, and calls backward and step at any time.
USER_LOOP = GradientPolicy(
    in_place_allowed=False, partial_allowed=False, none_where_unreached=True, knows_last_backward=False
)


@dataclass(kw_only=True)
class Worker:
    """A worker process as seen from its strategy: communication backend (comm), model, optimiser and settings."""

    comm: Comm
    codec: Codec
    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: nn.Module = field(init=False)  # the module that forward calls: the model or a strategy's wrapper
    weight: float = 0.0  # this worker's share of the global batch of the current step
    gradient_policy: GradientPolicy = OWN_LOOP
    warn: Callable[[str], None] = warnings.warn  # shows the user a sentence about a problem
    servers: Comm | None = None  # connects workers and servers, which have the last ranks; None without servers
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        self.replica = self.model
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def specs(self) -> list[TensorSpec]:
        """Return the sizes of the trained parameters, from which traffic is predicted."""
        return [TensorSpec.of(parameter) for parameter in self.parameters]


@dataclass(kw_only=True)
class Strategy(ABC):
    """Base class of strategies. The first docstring line of a subclass says what the strategy sends.

    Dataclass fields are the strategy's options. `setup` is called once before training, and `finish` once after it. The
    methods defined between them are called in every step, in the order of their definition. By default these methods do
    nothing, except that `setup` stores the worker and `step` calls the optimiser.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""

    codec: Codec  # written after a plus sign, as in ring+fp16; not an option

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee: ...

    @classmethod
    def unavailable(cls) -> str:
        """Return why this strategy cannot be used on this machine, or an empty string."""
        return ""

    @classmethod
    def unsupported(cls, comm: type[Comm]) -> str:  # noqa: ARG003
        """Return why this strategy cannot run on a communication backend (comm), or an empty string."""
        return ""

    def check(self, num_workers: int, optimizer: type[torch.optim.Optimizer]) -> None:
        """Raise UsageError if the number of workers or the optimiser is unsupported. Called before training."""

    def setup(self, worker: Worker) -> None:
        """Prepare for the first step. The replicas of all workers are already equal."""
        self.worker = worker

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """Process a parameter's gradient, for example start to send it. By default, do nothing.

        Called during the last backward pass of a step, as soon as this gradient is complete.
        """

    def after_backward(self) -> None: ...

    def step(self) -> None:
        self.worker.optimizer.step()

    def after_step(self) -> None: ...

    def finish(self) -> None:
        """Complete the synchronisation after the last step, for example average replicas. By default, do nothing."""

    @abstractmethod
    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        """Predict the messages and collectives of one worker in one step from the sizes of the parameters."""

    def traffic_period(self, world_size: int) -> int:  # noqa: ARG002
        """Return the number of steps after which `traffic` repeats; override it if `traffic` depends on the step."""
        return 1

    def metrics(self) -> Json:
        """Return the strategy's own measurements as JSON values; they are stored and shown with the run."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that a resumed worker needs. By default, this is the codec's state."""
        return {f"{_CODEC}{name}": tensor for name, tensor in self.codec.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state returned by `state_dict`."""
        self.codec.load_state_dict(
            {name.removeprefix(_CODEC): tensor for name, tensor in state.items() if name.startswith(_CODEC)}
        )

    @classmethod
    def option_fields(cls) -> dict[str, Field[Any]]:
        """Return the fields of the strategy's options by name."""
        return {item.name: item for item in fields(cls) if item.name != "codec"}

    @property
    def options(self) -> Options:
        """Return the values of the strategy's options."""
        return {name: getattr(self, name) for name in self.option_fields()}


_CODEC = "codec."  # prefix of the codec's state in a strategy's state


def joined_size(tensors: Sequence[TensorSpec]) -> TensorSpec:
    """Return the size of one vector that holds all tensors, in the widest of their data types."""
    return TensorSpec(sum(t.numel for t in tensors), max(t.itemsize for t in tensors))


def predict_traffic(
    strategy: Strategy, tensors: Sequence[TensorSpec], *, rank: int, world_size: int, num_steps: int
) -> Counter:
    """Return the predicted communication of worker `rank` in `num_steps` steps: bytes and calls of each operation."""
    total = Counter()
    period = strategy.traffic_period(world_size)
    num_periods, num_left = divmod(num_steps, period)
    for step in range(min(period, num_steps)):
        times = num_periods + (step < num_left)
        counter = Counter.of(strategy.traffic(tensors, rank, world_size, step))
        for key, nbytes in counter.nbytes.items():
            total.nbytes[key] = total.nbytes.get(key, 0) + times * nbytes
            total.calls[key] = total.calls.get(key, 0) + times * counter.calls[key]
    return total


def average_parameters(worker: Worker) -> None:
    """Replace each parameter with its unweighted average over workers, bit-identical on all workers."""
    comm = worker.comm
    if comm.world_size == 1:
        return
    with torch.no_grad():
        for parameter in worker.parameters:
            mean = parameter.detach().contiguous().clone()
            mean.div_(comm.world_size)
            comm.all_reduce(mean)
            parameter.copy_(mean)


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient. If it is None, set it to zeros first, so that all workers send equal sizes."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad
