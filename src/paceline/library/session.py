"""Any strategy under the user's own training loop: `init`, `parallel`, `finish`, and what lies between."""

from __future__ import annotations

import atexit
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.comm import Comm
from paceline.comm.choose import AUTO
from paceline.errors import RunError, UsageError
from paceline.library.attach import Attachment
from paceline.library.world import World, find_world
from paceline.parsing import whole_number
from paceline.strategies import Strategy, StrategySpec
from paceline.strategies.capabilities import as_asynchronous, check_contract, servers_of

# What `parallel` uses when nothing is said: the fastest exact strategy.
DEFAULT_STRATEGY = "overlap"


class Session:
    """What lies between `init` and `finish`: one worker's connection to its peers, and what it trains."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.comm: Comm = world.connect("session")
        self.rank, self.world_size = self.comm.rank, self.comm.world_size
        self.attachments: list[Attachment] = []

    def set_share(self, share: float) -> None:
        for attachment in self.attachments:
            attachment.set_share(share)

    def connect(self, strategy: Strategy, device: str) -> Comm:
        """A connection for one model, so that several models cannot get into each other's way."""
        return self.world.connect(f"parallel{len(self.attachments)}", device=device, strategy=strategy)

    def close(self) -> None:
        """Bring everything together and let go."""
        self._check_steps()
        for attachment in self.attachments:
            attachment.finish()
        self.comm.barrier()  # nobody lets go of a connection that a slower peer still uses
        if self.world.given is None:
            for attachment in self.attachments:
                attachment.comm.close()
            self.comm.close()
            self.world.leave()

    def _check_steps(self) -> None:
        """Workers that made different numbers of steps would wait for each other in what follows."""
        if self.world.store is None or any(as_asynchronous(a.strategy) for a in self.attachments):
            return
        everybody = self.world.tell("finish", " ".join(str(attachment.num_steps) for attachment in self.attachments))
        odd = next((rank for rank, steps in enumerate(everybody) if steps != everybody[0]), None)
        if odd is not None:
            self.world.leave()  # everybody has read why, before the first one ends
            raise RunError(
                f"worker 0 made {everybody[0]} steps and worker {odd} made {everybody[odd]}: workers must make the "
                "same number; a loader that is not paceline.shard()'s, or a GradScaler that skips a step on one worker "
                "alone, makes them differ"
            )


_current: Session | None = None
_num_sessions = 0
_place = (0, 1)  # rank and world size of the last session: who saves a model after finish() asks for them


def current(function: str) -> Session:
    """The session that `init` began."""
    if _current is None:
        raise UsageError(f"paceline.{function}() was called without a session: paceline.init() comes first")
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
    """Meet the other workers. Every worker calls it, once, before anything else of the library.

    A worker's place is what is given here, or what torch.distributed has been told already, or what torchrun's
    environment says (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT); without any of these it is alone, and
    the library then costs nothing. `timeout_s` is the longest wait for a peer.
    """
    if _current is not None:
        raise UsageError("paceline.init() was called twice; paceline.finish() comes between")
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
    """Begin a session in a world that is known."""
    global _current, _num_sessions, _place
    assert _current is None
    _current = Session(world)
    _num_sessions += 1
    _place = (_current.rank, _current.world_size)
    atexit.register(_forgotten)


def parallel(
    model: nn.Module,
    optimizer: Optimizer,
    strategy: str | Strategy = DEFAULT_STRATEGY,
    *,
    codec: str | None = None,
    check_data: bool = True,
) -> tuple[nn.Module, Optimizer]:
    """Train a model together with the other workers; the loop stays as it was.

    Returns what to call forward on and what to call `step` on: the same objects, unless the strategy wraps the model
    (ddp) or takes the step itself. `strategy` is written as on the command line (`ring`, `ddp:bucket_mb=5+bf16`) or is
    a Strategy. All workers start from rank 0's parameters and buffers. `check_data` compares the first batch over
    workers: identical ones are an error.
    """
    session = current("parallel")
    built = _build(strategy, codec)
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise UsageError("the model has no trainable parameter")
    own = set(model.parameters())
    strangers = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p not in own]
    if strangers:
        raise UsageError(
            f"the optimizer holds {len(strangers)} parameters that are not the model's: workers would not agree on "
            "them; give parallel() a module that holds all, nn.ModuleList([a, b]) for instance"
        )
    if any(attachment.worker.model is model for attachment in session.attachments):
        raise UsageError("parallel() was called twice for one model")
    if session.world_size == 1:
        return model, optimizer
    if servers_of(built, session.world_size):
        raise UsageError(f"strategy {built.name!r} has servers, which are processes of their own: use `paceline run`")
    built.check(session.world_size, type(optimizer))
    comm = session.connect(built, parameters[0].device.type)
    reason = built.unsupported(type(comm))
    if reason:
        raise UsageError(f'strategy {built.name!r} cannot run: {reason}; use init(comm="auto")')
    attachment = Attachment(model, optimizer, built, comm, check_data=check_data)
    session.attachments.append(attachment)
    return attachment.worker.replica, attachment.optimizer


@contextmanager
def no_sync() -> Iterator[None]:
    """Around forward and backward of every part of a step but the last: gradients add up here and travel once."""
    with ExitStack() as stack:
        for attachment in current("no_sync").attachments:
            stack.enter_context(attachment.no_sync())
        yield


def finish() -> None:
    """Bring replicas together and end the session. Every worker calls it, after its last step.

    Afterwards weights are equal on every worker (but for strategy none, which promises nothing), BatchNorm's running
    statistics are their mean over workers, and neither model nor optimiser has a hook of the library.
    """
    global _current
    session = current("finish")
    try:
        session.close()
    finally:
        for attachment in session.attachments:
            attachment.detach()
        _current = None
        atexit.unregister(_forgotten)


def rank() -> int:
    """This worker's number, from 0, also after `finish`; 0 before any session."""
    return _place[0]


def world_size() -> int:
    """How many workers there are, or were before `finish`; 1 before any session."""
    return _place[1]


def state_dict() -> dict[str, Tensor]:
    """What the strategies must remember over a restart, for this worker: part of the user's own checkpoint."""
    return {
        f"{index}.{name}": value
        for index, attachment in enumerate(current("state_dict").attachments)
        for name, value in attachment.strategy.state_dict().items()
    }


def load_state_dict(state: dict[str, Tensor]) -> None:
    """Take back what `state_dict` gave, after the same calls of `parallel`."""
    attachments = current("load_state_dict").attachments
    parts: list[dict[str, Tensor]] = [{} for _ in attachments]
    for key, value in state.items():
        index, _, name = key.partition(".")
        number = whole_number(index)
        if number is None or number >= len(parts):
            raise UsageError(f"{key!r} belongs to no model of this session; call parallel() as before, then this")
        parts[number][name] = value
    for attachment, part in zip(attachments, parts, strict=True):
        attachment.strategy.load_state_dict(part)


def _build(strategy: str | Strategy, codec: str | None) -> Strategy:
    if isinstance(strategy, str):
        return StrategySpec.parse(strategy, codec or "fp32").build()
    if codec is not None:
        raise UsageError("a Strategy object has its codec already; leave codec= out")
    check_contract(type(strategy))
    return strategy


def _forgotten() -> None:
    """At exit, without a word to peers: they may be gone."""
    if hasattr(sys, "last_type"):
        return  # the program ends by an exception, which says more
    if _current is not None and any(attachment.may_differ for attachment in _current.attachments):
        names = ", ".join(a.strategy.name for a in _current.attachments if a.may_differ)
        warnings.warn(
            f"worker {_current.rank} ends without paceline.finish(): under strategy {names} replicas may differ, "
            "and they were not brought together",
            RuntimeWarning,
            stacklevel=1,
        )
