"""The library's functions for the user's own training loop: `init`, `parallel`, `no_sync`, `finish` and others."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.comm import Comm
from paceline.comm.worker_placement import AUTO
from paceline.errors import RunError, UsageError
from paceline.library.attach import Attachment
from paceline.library.world import World, find_world
from paceline.parsing import whole_number
from paceline.strategies import Strategy, StrategySpec
from paceline.strategies.capabilities import as_asynchronous, check_contract, servers_of

# `overlap` is exact (the same update as one worker with the whole batch), and communicates during backward.
DEFAULT_STRATEGY = "overlap"


class Positioned(Protocol):
    """A loader with a position that can be stored and restored."""

    position: dict[str, int]


class Session:
    """State of one worker between `init` and `finish`: its connections to the other workers, and its models."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.comm: Comm = world.connect("session")
        self.rank, self.world_size = self.comm.rank, self.comm.world_size
        self.attachments: list[Attachment] = []
        self.loaders: list[Positioned] = []  # from `shard`, whose positions are part of a checkpoint

    def set_share(self, share: float) -> None:
        for attachment in self.attachments:
            attachment.set_share(share)

    def connect(self, strategy: Strategy, device: str) -> Comm:
        """Open a comm (connections to the other workers) for one more model.

        Each model has its own comm, so that messages of different models cannot mix.
        """
        return self.world.connect(f"parallel{len(self.attachments)}", device=device, strategy=strategy)

    def close(self) -> None:
        """Remove all hooks, make replicas equal, and close the connections that this session has opened."""
        self._check_steps()
        for attachment in self.attachments:
            attachment.finish()
        self.comm.barrier()  # a slower worker may still use the connections
        if self.world.existing is None:
            for attachment in self.attachments:
                attachment.comm.close()
            self.comm.close()
            self.world.leave()

    def _check_steps(self) -> None:
        """Raise RunError if workers made different numbers of optimiser steps, since `finish` would then deadlock."""
        if self.world.store is None or any(as_asynchronous(a.strategy) for a in self.attachments):
            return
        steps_by_rank = self.world.gather(
            "finish", " ".join(str(attachment.num_steps) for attachment in self.attachments)
        )
        odd = next((rank for rank, steps in enumerate(steps_by_rank) if steps != steps_by_rank[0]), None)
        if odd is not None:
            self.world.leave()  # worker 0 hosts the store, and must not exit before all workers have read the counts
            raise RunError(
                f"worker 0 made {steps_by_rank[0]} steps and worker {odd} made {steps_by_rank[odd]}: workers must make "
                "the same number; usual causes are a loader without paceline.shard() and a GradScaler that skips a "
                "step on one worker only"
            )


_current: Session | None = None
_num_sessions = 0
_rank_and_size = (0, 1)  # of the last session; kept after finish(), because users save their model on rank 0 then


def current(function: str) -> Session:
    """Return the session that `init` started. Raises UsageError if there is none.

    `function` is the name of the library function that the user called, for the error message.
    """
    if _current is None:
        raise UsageError(f"paceline.{function}() was called without a session; call paceline.init() first")
    return _current


def init(
    comm: str = AUTO,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    timeout_s: float = 60.0,
) -> None:
    """Connect to the other workers. Call it once on every worker, before any other function of the library.

    The rank and the number of workers come from the arguments. Processes started by torch.multiprocessing.spawn must
    pass these arguments. Without them, the values come from an initialised torch.distributed, or else from torchrun's
    environment variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). A process with none of these is the
    only worker, and the library adds no overhead to its training. `timeout_s` is the longest wait for another worker,
    in seconds. `comm` is the transport (`torch`, `shm` and others); "auto" chooses one for the hosts and the device.
    """
    if _current is not None:
        raise UsageError("paceline.init() was called twice; call paceline.finish() in between")
    begin(
        find_world(
            session=_num_sessions,
            comm=comm,
            timeout_s=timeout_s,
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            master_addr=master_addr,
            master_port=master_port,
        )
    )


def begin(world: World) -> None:
    """Start a session in which this worker has the rank and the connections that `world` describes."""
    global _current, _num_sessions, _rank_and_size
    assert _current is None
    _current = Session(world)
    _num_sessions += 1
    _rank_and_size = (_current.rank, _current.world_size)
    atexit.register(_warn_unfinished)


def parallel(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: str | Strategy = DEFAULT_STRATEGY,
    *,
    codec: str | None = None,
    check_data: bool = True,
    check_replicas: int = 0,
) -> tuple[nn.Module, Optimizer]:
    """Synchronise a model and its optimiser with the other workers. The training loop stays unchanged.

    Return the model and the optimiser to use in the training loop. They are the objects that were passed, unless the
    strategy wraps the model (ddp) or executes the optimiser's step itself. `strategy` is a Strategy, or text as on the
    command line (`ring`, `ddp:bucket_mb=5+bf16`). `codec` names the compression of gradients (`bf16`, `int8`) if the
    strategy's text has no suffix such as `+bf16`. All workers start from rank 0's parameters and buffers. With
    `check_data`, RunError is raised if two workers get the same first batch. If `check_replicas` is M, the replicas of
    all workers are compared every M steps, and RunError is raised if they differ.
    """
    session = current("parallel")
    built = _build(strategy, codec)
    if check_replicas < 0:
        raise UsageError(f"check_replicas is a number of steps, 0 or more, not {check_replicas}")
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer to parallel()")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise UsageError("the model has no trainable parameter; parallel() needs one with requires_grad=True")
    own = set(model.parameters())
    foreign = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p not in own]
    if foreign:
        raise UsageError(
            f"the optimizer has {len(foreign)} parameters that are not the model's, which would not be synchronised; "
            "pass a module that holds all of them, such as nn.ModuleList([a, b])"
        )
    if any(attachment.worker.model is model for attachment in session.attachments):
        raise UsageError("parallel() was called twice for one model; call it once per model and session")
    if session.world_size == 1:
        return model, optimizer
    if servers_of(built, session.world_size):
        raise UsageError(
            f"strategy {built.name!r} needs server processes, which the library does not start; use `paceline run`"
        )
    built.check(session.world_size, type(optimizer))
    comm = session.connect(built, parameters[0].device.type)
    reason = built.unsupported(type(comm))
    if reason:
        raise UsageError(f'strategy {built.name!r} cannot run: {reason}; use init(comm="auto")')
    attachment = Attachment(model, optimizer, built, comm, check_data=check_data, check_replicas=check_replicas)
    session.attachments.append(attachment)
    return attachment.worker.replica, attachment.optimizer


@contextmanager
def no_sync() -> Iterator[None]:
    """Accumulate gradients locally, without synchronising them, in the `with` block.

    Use it for forward and backward of every micro-batch of a step except the last.
    """
    with ExitStack() as stack:
        for attachment in current("no_sync").attachments:
            stack.enter_context(attachment.no_sync())
        yield


def finish() -> None:
    """Make replicas equal and end the session. Call it on every worker after its last step.

    Afterwards the weights are equal on every worker (except under strategy none), the running statistics of BatchNorm
    layers are averaged over workers, and all hooks are removed from models and optimisers.
    """
    global _current
    session = current("finish")
    try:
        session.close()
    finally:
        for attachment in session.attachments:
            attachment.detach()
        _current = None
        atexit.unregister(_warn_unfinished)


def rank() -> int:
    """Return this worker's rank. It is 0 before the first `init`, and remains available after `finish`."""
    return _rank_and_size[0]


def world_size() -> int:
    """Return the number of workers. It is 1 before the first `init`, and remains available after `finish`."""
    return _rank_and_size[1]


def state_dict() -> dict[str, Tensor]:
    """Return the state of this worker's strategies, without model and optimiser, for the user's own checkpoint."""
    return {
        f"{index}.{name}": value
        for index, attachment in enumerate(current("state_dict").attachments)
        for name, value in attachment.strategy.state_dict().items()
    }


def load_state_dict(state: dict[str, Tensor]) -> None:
    """Restore the state of this worker's strategies from a dict that `state_dict` returned.

    Before this call, call `parallel` for the same models in the same order as in the session that saved the state.
    """
    attachments = current("load_state_dict").attachments
    parts: list[dict[str, Tensor]] = [{} for _ in attachments]
    for key, value in state.items():
        index, _, name = key.partition(".")
        number = whole_number(index)
        if number is None or number >= len(parts):
            raise UsageError(
                f"{key!r} belongs to no model of this session; call parallel() for each model of the checkpoint first"
            )
        parts[number][name] = value
    for attachment, part in zip(attachments, parts, strict=True):
        attachment.strategy.load_state_dict(part)


def _build(strategy: str | Strategy, codec: str | None) -> Strategy:
    if isinstance(strategy, str):
        return StrategySpec.parse(strategy, codec or "fp32").build()
    if codec is not None:
        raise UsageError("codec= conflicts with a Strategy object, which has its own codec; leave codec= out")
    check_contract(type(strategy))
    return strategy


def _warn_unfinished() -> None:
    """Warn at exit if `finish` was not called and replicas may differ.

    The other workers are not contacted, because they may have exited.
    """
    if hasattr(sys, "last_type"):
        return  # an exception ended the program and is printed
    if _current is not None and any(attachment.may_differ for attachment in _current.attachments):
        names = ", ".join(a.strategy.name for a in _current.attachments if a.may_differ)
        warnings.warn(
            f"worker {_current.rank} exits without paceline.finish(), so its replica may differ from the others' "
            f"(strategy {names}); call finish() after training",
            RuntimeWarning,
            stacklevel=1,
        )
