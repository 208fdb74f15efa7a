"""Cases for the library tests: functions that workers run, each returning plain values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import paceline
from helpers import TESTS, on_pool
from library_mistakes import MISTAKES
from library_uses import batch, in_session, sgd, step, values
from paceline.comm import Counter
from paceline.launch.local import LocalPool
from paceline.library import session
from paceline.library.world import World
from paceline.train.context import Context
from paceline.train.replicas import parameter_digest
from toys import toy_model

EVERY_OTHER = f"{TESTS / 'library_strategies.py'}:EveryOther"


def run_case(context: Context, case: str, **arguments: Any) -> Any:
    """Run a case on one worker; a PacelineError is returned as its message."""
    try:
        return in_session(World(existing=context.comm), lambda: CASES[case](**arguments))
    except paceline.PacelineError as error:
        return {"error": str(error), "kind": type(error).__name__}


def on(pool: LocalPool, world_size: int, case: str, **arguments: Any) -> list[Any]:
    """Run a case on worker processes and return their results."""
    return on_pool(pool, world_size, run_case, case=case, **arguments)


def alone(case: str, **arguments: Any) -> Any:
    """Run a case in this process, with one worker."""
    return in_session(World(), lambda: CASES[case](**arguments))


def sentence(workers: list[Any]) -> str:
    """Return the message of worker 0 after checking that every worker failed."""
    assert all(isinstance(worker, dict) and "error" in worker for worker in workers), workers
    return str(workers[0]["error"])


def attachment() -> Any:
    return session.current("test").attachments[0]


def traffic(strategy: str) -> Any:
    """Return counted and predicted bytes of a step of three micro-batches, two of them without synchronisation."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    own = attachment()
    own.comm.counter.clear()
    for part in range(3):
        images, labels = batch(0, part)
        if part < 2:
            with paceline.no_sync():
                F.cross_entropy(replica(images), labels).backward()
        else:
            F.cross_entropy(replica(images), labels).backward()
    optimizer.step()
    predicted = Counter.of(own.strategy.traffic(own.worker.specs, paceline.rank(), paceline.world_size(), 0))
    counted = [sorted(map(list, counter.nbytes.items())) for counter in (own.comm.counter, predicted)]
    return [*counted, len(own.worker.parameters)]


def no_hook_is_left(strategy: str) -> Any:
    model = toy_model("plain")
    inner = sgd(model)
    replica, optimizer = paceline.parallel(model, inner, strategy)
    step(replica, optimizer, 0)
    hooks_during = num_hooks(model, inner)
    paceline.finish()
    hooks_after = num_hooks(model, inner)
    session.begin(World())  # for the one that finishes this session
    return [hooks_during, hooks_after]


def num_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    of_parameters = sum(
        len(parameter._post_accumulate_grad_hooks or ()) + len(parameter._backward_hooks or ())
        for parameter in model.parameters()
    )
    of_optimizer = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return of_parameters + of_optimizer + len(model._forward_pre_hooks)


def weights_averaged(steps: int) -> Any:
    """Train under a strategy that averages weights; return the replica before and after `finish`."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.05), EVERY_OTHER)
    assert replica is model
    found = []
    for number in range(steps):
        step(replica, optimizer, number)
        found.append(parameter_digest(model))
    state = {key: value.tolist() for key, value in paceline.state_dict().items()}
    paceline.load_state_dict({"0.num_steps": torch.tensor(7)})
    loaded = attachment().strategy.num_steps
    paceline.finish()
    session.begin(World())
    return {"digests": found, "finished": parameter_digest(model), "state": state, "loaded": loaded}


def replicas_checked(strategy: str, every: int) -> Any:
    """Train, and flip one bit of worker 1's replica after the first step."""
    model = toy_model("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    replica, optimizer = paceline.parallel(model, optimizer, strategy, check_replicas=every)
    for number in range(4):
        step(replica, optimizer, number)
        if number == 0 and paceline.rank() == 1:
            next(model.parameters()).detach().view(-1).view(torch.int64)[3] ^= 1
    return values(model)


def own_step() -> Any:
    """Train under a strategy with its own `step`; schedulers and checkpoints must keep working."""
    model = toy_model("plain")
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    replica, optimizer = paceline.parallel(model, inner, f"{TESTS / 'library_strategies.py'}:OwnStep")
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer is not inner
    assert optimizer.param_groups is inner.param_groups
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number in range(3):
        images, labels = batch(number)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(replica(images), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    return {"values": values(model), "lr": inner.param_groups[0]["lr"], "state_lr": state["param_groups"][0]["lr"]}


def reentrant(strategy: str) -> Any:
    """Train with reentrant activation checkpointing: a backward inside the backward."""
    model = toy_model("tied")
    _, optimizer = paceline.parallel(model, sgd(model), strategy)
    for number in range(2):
        images, labels = batch(number)
        optimizer.zero_grad()
        hidden = checkpoint(
            lambda x: torch.tanh(model.first(x)), images.flatten(1).requires_grad_(), use_reentrant=True
        )
        hidden = checkpoint(lambda x: torch.tanh(model.second(x * 0.5)), hidden, use_reentrant=True)
        F.cross_entropy(model.last(hidden), labels).backward()
        optimizer.step()
    return values(model)


def failed_backward(strategy: str) -> Any:
    """Repeat a backward that raised an error halfway."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
            raise LookupError("half-way")

    images, labels = batch(0)
    hidden = Refuses.apply(torch.tanh(model.conv(images)))
    try:
        F.cross_entropy(model.linear(hidden.flatten(1)), labels).backward()
    except LookupError:
        step(replica, optimizer, 0)
        return values(model)
    return "nothing was raised"


def dtypes(strategy: str, kinds: list[str]) -> Any:
    """Train a model whose layers have different dtypes."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Cast(getattr(torch, kind)) for kind in kinds))
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.05), strategy)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        x = torch.randn(6, 8, generator=generator)
        each = 6 // paceline.world_size()
        optimizer.zero_grad()
        replica(x[paceline.rank() * each : (paceline.rank() + 1) * each]).float().square().mean().backward()
        optimizer.step()
    assert [str(p.dtype) for p in model[0].parameters()] == [f"torch.{kinds[0]}"] * 2
    return values(model)


class Cast(nn.Linear):
    """A layer that casts its input to its own dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(8, 8, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x.to(self.weight.dtype)))


def two_models() -> Any:
    """Train two models in turns, each with its own optimiser and strategy."""
    first, second = toy_model("plain"), toy_model("plain")
    one, one_optimizer = paceline.parallel(first, sgd(first), "all-reduce")
    two, two_optimizer = paceline.parallel(second, sgd(second), "ring")
    for number in range(2):
        images, labels = batch(number)
        one_optimizer.zero_grad()
        two_optimizer.zero_grad()
        (F.cross_entropy(one(images), labels) + F.cross_entropy(two(images), labels)).backward()
        one_optimizer.step()
        step(two, two_optimizer, number + 5)
        one_optimizer.step()
    return values(first) + values(second)


def batchnorm() -> Any:
    """Return running statistics before `finish` (each worker's own) and after it (their mean)."""
    model = nn.BatchNorm1d(2)
    replica, optimizer = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-reduce")
    replica(torch.full((3, 2), float(paceline.rank())) + torch.arange(3.0)[:, None]).sum().backward()
    optimizer.step()
    before = model.running_mean.tolist()
    paceline.finish()
    session.begin(World())
    return [before, model.running_mean.tolist(), parameter_digest(model)]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(11))


def shards(num_samples: int, batch_size: int, epochs: int = 2, **arguments: Any) -> Any:
    """Return this worker's samples in every batch of every epoch."""
    data: Any = Stream() if num_samples == 0 else TensorDataset(torch.arange(num_samples))
    start = arguments.pop("start", None)
    own = paceline.shard(DataLoader(data, batch_size=batch_size, **arguments), seed=3)
    if start is not None:
        own.set_epoch(start)
    found = []
    for _ in range(epochs):
        found.append([(item if num_samples == 0 else item[0]).tolist() for item in own])
        assert num_samples == 0 or len(own) == len(found[-1])
    return found


def shard_lengths() -> Any:
    paceline.shard(DataLoader(TensorDataset(torch.arange(8 + paceline.rank())), batch_size=2))
    return "nothing was noticed"


CASES: dict[str, Callable[..., Any]] = MISTAKES | {
    function.__name__: function
    for function in (
        traffic,
        no_hook_is_left,
        weights_averaged,
        replicas_checked,
        own_step,
        reentrant,
        failed_backward,
        dtypes,
        two_models,
        batchnorm,
        shards,
        shard_lengths,
    )
}


def warned_shard(context: Context) -> str:
    def work() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(shards(num_samples=8, batch_size=2)[0]) == 1
        return str(caught[0].message)

    return str(in_session(World(existing=context.comm), work))
