"""The contract of a strategy: how workers agree, what is exchanged, when, with whom."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from paceline.codecs import Codec, TensorSpec
from paceline.comm import Comm, Operation


class Guarantee(enum.Enum):
    """What a strategy promises about the replicas; it picks the test that the strategy must pass."""

    EXACT = "EXACT"  # after every step all replicas equal the oracle, to rounding
    LOSSY = "LOSSY"  # as exact, but for the codec's error
    PERIODIC = "PERIODIC"  # replicas are the same bits after every synchronisation, on a way of their own between
    PARTIAL = "PARTIAL"  # replicas stay within a stated distance of their mean, and no worker counts more over time
    STALE = "STALE"  # gradients may be taken at older parameters, by no more than a stated number of updates
    NONE = "NONE"  # replicas go their own ways


@dataclass(kw_only=True)
class Worker:
    """What a strategy may touch of the worker that it serves."""

    comm: Comm
    codec: Codec
    model: nn.Module
    optimizer: torch.optim.Optimizer
    replica: nn.Module = field(init=False)  # what forward calls: the model, or what a strategy wraps around it
    weight: float = 0.0  # this worker's share of the global batch of the current step
    # Whether somebody else's code sees the gradients (clips them, say) between backward and step: then they must be
    # this worker's own memory, complete, and None where no worker's batch reached the parameter.
    is_library: bool = False
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
    """One way for workers to agree. The first line says what happens on the wire.

    A strategy is its own configuration: dataclass fields are its options. The methods are called in the order in
    which they stand here; each does nothing unless a strategy needs it.
    """

    name: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    # Whether gradients that no worker's batch reached are None again after `after_backward`; where they are not, the
    # library asks all workers after every backward.
    carries_reach: ClassVar[bool] = False

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
        """Raise UsageError for what cannot work with so many workers or that optimiser; before anything starts."""

    def check_model(self, tensors: Sequence[TensorSpec]) -> None:
        """Raise UsageError for a model of such tensors that cannot be trained so; before anything starts."""

    def num_servers(self, num_workers: int) -> int:  # noqa: ARG002
        """Extra processes that run `serve` instead of the training loop."""
        return 0

    def serve(self, server: Worker) -> None:
        """A server's whole life. Its model and optimiser are built as the workers'; `server.comm` reaches them all."""
        raise NotImplementedError(f"strategy {self.name} has no servers ({server.comm.rank})")

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers run at their own pace, so that the loop must not contain a collective."""
        return False

    def is_synchronised(self, step: int) -> bool:  # noqa: ARG002
        """Whether replicas are equal after this step (counted from 0), where the guarantee is PERIODIC."""
        return True

    def drift_bound(self, num_workers: int) -> float:  # noqa: ARG002
        """Where the guarantee is PARTIAL: the largest replica drift, in lengths of what one step moves a replica."""
        return 0.0

    def staleness_bound(self, num_workers: int) -> int | None:  # noqa: ARG002
        """Where the guarantee is STALE: by how many updates a gradient may be late at most; None is no bound."""
        return None

    def setup(self, worker: Worker) -> None:
        """Before the first step. Replicas are equal already."""
        self.worker = worker

    @property
    def loss_scale(self) -> float:
        """What a step's loss is multiplied by before backward."""
        return 1.0

    @property
    def num_micro_batches(self) -> int:
        """Into how many pieces a worker's batch is cut between two synchronisations."""
        return 1

    def no_sync(self) -> AbstractContextManager[Any]:
        """Around the backward of every micro-batch of a step but the last."""
        return nullcontext()

    @property
    def watched(self) -> list[nn.Parameter]:
        """The parameters for which `on_gradient` is called."""
        return [] if type(self).on_gradient is Strategy.on_gradient else self.worker.parameters

    def zero_grad(self) -> None:
        """Before a step's first backward, in our own loop."""
        self.worker.optimizer.zero_grad()

    def on_gradient(self, parameter: nn.Parameter) -> None:
        """During the last backward of a step, as soon as a gradient is complete."""

    def after_backward(self) -> None: ...

    def step(self) -> None:
        self.worker.optimizer.step()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser that takes the steps and holds their state."""
        return self.worker.optimizer

    def after_step(self) -> None: ...

    def keep_alive(self) -> None:
        """Between two batches of an evaluation amid the run: who waits for this worker may be told that it lives."""

    def ask_all_to_stop(self) -> None:
        """By rank 0, where workers run at their own pace: each is to stop after the next step at the latest."""
        raise NotImplementedError(f"workers of strategy {self.name} cannot be asked to stop")

    @property
    def is_asked_to_stop(self) -> bool:
        """Where workers run at their own pace: whether this one has heard of it."""
        return False

    def wait_for_others(self) -> None:
        """After this worker's last step: where workers run at their own pace, the slowest is waited for here.

        Later waits have a time limit; this one lasts as long as others make progress.
        """

    def finish(self) -> None:
        """After the last step: replicas that may differ are brought together."""

    @abstractmethod
    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        """The operations of one worker in one step, predicted from sizes alone."""

    def traffic_period(self, world_size: int) -> int:  # noqa: ARG002
        """After how many steps `traffic` begins again; a strategy that looks at the step's number says so here."""
        return 1

    def buffer_bytes(self, tensors: Sequence[TensorSpec], rank: int, world_size: int) -> int:  # noqa: ARG002
        """Memory that agreeing takes on a worker beside parameters, gradients and optimiser: an estimate."""
        return 0

    def optimizer_share(self, num_workers: int) -> float:  # noqa: ARG002
        """How much of the optimiser's state one worker holds."""
        return 1.0

    def metrics(self) -> dict[str, Any]:
        """What the strategy measured about itself, as plain values: shown with the run."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What must survive a restart of this worker: here what its codec keeps; a strategy adds its own to it."""
        return {f"{_CODEC}{name}": tensor for name, tensor in self.codec.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        self.codec.load_state_dict(
            {name.removeprefix(_CODEC): tensor for name, tensor in state.items() if name.startswith(_CODEC)}
        )

    @classmethod
    def option_fields(cls) -> dict[str, Any]:
        """The strategy's own options by name."""
        return {item.name: item for item in fields(cls) if item.name != "codec"}

    @property
    def options(self) -> dict[str, Any]:
        """The values of the strategy's own options."""
        return {name: getattr(self, name) for name in self.option_fields()}


_CODEC = "codec."  # what a codec keeps, among what a strategy keeps


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
