"""Training loops as users write them, each for one worker with all samples or several with a share each.

A use takes a strategy, calls `paceline.parallel` and returns the parameters after every step as plain numbers.
Without peers the library does nothing, so one worker is the oracle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.library.session import begin
from paceline.library.world import World
from paceline.train.context import Context
from toys import CLASSES, toy_model

GLOBAL_BATCH, STEPS = 6, 4
History = list[list[float]]


def run_use(context: Context, use: str, strategy: str) -> History:
    """A use on one worker of a world of processes."""
    return in_session(World(existing=context.comm), USES[use], strategy)


def in_session(world: World, function: Callable[..., Any], *arguments: Any) -> Any:
    begin(world)
    try:
        result = function(*arguments)
    except BaseException:
        abandon()
        raise
    paceline.finish()
    return result


def abandon() -> None:
    """Discard the session of a failed worker, so that the process can begin another."""
    from paceline.library import session

    if session._current is not None:
        for attachment in session._current.attachments:
            attachment.detach()
    session._current = None


def batch(step: int, part: int = 0) -> tuple[Tensor, Tensor]:
    """Return this worker's share of a global batch that does not depend on the number of workers."""
    generator = torch.Generator().manual_seed(100 * step + part)
    images = torch.randn(GLOBAL_BATCH, 2, 6, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(CLASSES, (GLOBAL_BATCH,), generator=generator)
    each = GLOBAL_BATCH // paceline.world_size()
    mine = slice(paceline.rank() * each, (paceline.rank() + 1) * each)
    return images[mine], labels[mine]


def values(model: nn.Module) -> list[float]:
    return [value for parameter in model.parameters() for value in parameter.detach().double().flatten().tolist()]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(replica: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    images, labels = batch(number)
    optimizer.zero_grad()
    F.cross_entropy(replica(images), labels).backward()
    optimizer.step()


def loop(
    strategy: str,
    *,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    set_to_none: bool = True,
    before_step: Callable[[nn.Module], None] = lambda _: None,
) -> History:
    model = model or toy_model("plain")
    replica, stepper = paceline.parallel(model, optimizer(model), strategy)
    history = []
    for step in range(STEPS):
        images, labels = batch(step)
        stepper.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(replica(images), labels).backward()
        before_step(model)
        stepper.step()
        history.append(values(model))
    return history


def accumulate(strategy: str, *, hold: bool, set_to_none: bool = True) -> History:
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=set_to_none)
        parts = [batch(step, part) for part in range(3)]
        for images, labels in parts[:-1] if hold else parts:
            if hold:
                with paceline.no_sync():
                    (F.cross_entropy(replica(images), labels) / 3).backward()
            else:
                (F.cross_entropy(replica(images), labels) / 3).backward()
        if hold:
            images, labels = parts[-1]
            (F.cross_entropy(replica(images), labels) / 3).backward()
        optimizer.step()
        history.append(values(model))
    return history


def clip(model: nn.Module) -> None:
    # The norm of these gradients is above 1 in every step, so clipping changes them.
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1


def scaled(strategy: str, *, overflow: bool) -> History:
    """Train with a GradScaler; with `overflow`, one sample overflows in one step, which all workers must skip."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    history = []
    for step in range(STEPS):
        images, labels = batch(step)
        if overflow and step == 1 and paceline.rank() == 0:
            images[0, 0, 0, 0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(replica(images), labels)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        history.append([*values(model), scaler.get_scale()])
    if overflow:
        assert history[1][:-1] == history[0][:-1], "the overflow was not noticed"
    return history


class Gated(nn.Module):
    """A model with a layer for samples above a threshold and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.gated, self.never = nn.Linear(72, CLASSES), nn.Linear(72, CLASSES), nn.Linear(2, 2)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        scores = self.always(x)
        chosen = x[:, 0] > 10
        if bool(chosen.any()):
            return scores.index_add(0, chosen.nonzero().squeeze(1), self.gated(x[chosen]))
        return scores


def gated_model() -> nn.Module:
    generator = torch.Generator().manual_seed(11)
    model = Gated().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def unreached(strategy: str) -> History:
    """Train with a layer that none, one or all workers use: decay and momentum need a gradient to act."""
    model = gated_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    name = "ddp:find_unused=true" if strategy == "ddp" else strategy
    replica, optimizer = paceline.parallel(model, inner, name)
    history = []
    for step, reached in enumerate(([], [0], [], range(GLOBAL_BATCH), [GLOBAL_BATCH - 1], [])):
        images, labels = batch(step)
        each = len(images)
        for sample in reached:
            if sample // each == paceline.rank():
                images[sample % each, 0, 0, 0] = 11.0
        optimizer.zero_grad()
        F.cross_entropy(replica(images), labels).backward()
        assert model.never.weight.grad is None
        assert (model.gated.weight.grad is None) == (not reached)
        optimizer.step()
        history.append(values(model))
    return history


def groups(strategy: str) -> History:
    """Train two parameter groups with different rates and a scheduler of the optimiser that `parallel` returned."""
    model = toy_model("plain")
    inner = torch.optim.Adam(
        [{"params": model.conv.parameters(), "lr": 0.02}, {"params": model.linear.parameters(), "lr": 0.001}]
    )
    replica, optimizer = paceline.parallel(model, inner, strategy)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    history = []
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(replica(images), labels).backward()
        optimizer.step()
        scheduler.step()
        history.append([*values(model), *(float(group["lr"]) for group in inner.param_groups)])
    assert history[0][-2:] == [0.01, 0.0005]
    return history


def replaced(strategy: str) -> History:
    """Train with an optimiser hook, registered before `parallel`, that replaces the gradient tensors."""

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made = sgd(model)

        def replace(*_: Any) -> None:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad = parameter.grad.sign() * 0.1 + parameter.grad

        made.register_step_pre_hook(replace)
        return made

    return loop(strategy, optimizer=optimizer)


def closure(strategy: str) -> History:
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    history = []
    for step in range(STEPS):
        images, labels = batch(step)

        def evaluate(images: Tensor = images, labels: Tensor = labels) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(replica(images), labels)
            loss.backward()
            return loss

        assert optimizer.step(evaluate).item() > 0
        history.append(values(model))
    return history


def reloaded(strategy: str) -> History:
    """Save model and optimiser after one step and load them after the next."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    history, saved = [], {}
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(replica(images), labels).backward()
        optimizer.step()
        if step == 0:
            saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        elif step == 1:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        history.append(values(model))
    assert history[1] == history[0]
    return history


def sharded_loader(strategy: str) -> History:
    """Train two epochs of 17 samples from a shuffling loader: the last global batch is short and uneven."""
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(17, 2, 6, 6, generator=generator, dtype=torch.float64)
    data = TensorDataset(images, torch.randint(CLASSES, (17,), generator=generator))
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    loader = paceline.shard(DataLoader(data, batch_size=GLOBAL_BATCH // paceline.world_size(), shuffle=True))
    assert len(loader) == 3
    history = []
    for _ in range(2):
        optimizer.zero_grad()
        for index, (x, labels) in enumerate(loader):
            # The second waits without an exchange for the third, in which workers have other weights.
            if index == 1:
                with paceline.no_sync():
                    F.cross_entropy(replica(x), labels).backward()
                continue
            F.cross_entropy(replica(x), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            history.append(values(model))
    return history


USES: dict[str, Callable[[str], History]] = {
    "plain": loop,
    "gradients set to zero": lambda strategy: loop(strategy, set_to_none=False),
    "accumulation": lambda strategy: accumulate(strategy, hold=False),
    "accumulation without exchange": lambda strategy: accumulate(strategy, hold=True),
    "accumulation on zeros": lambda strategy: accumulate(strategy, hold=True, set_to_none=False),
    "clipped": lambda strategy: loop(strategy, before_step=clip),
    "scaled": lambda strategy: scaled(strategy, overflow=False),
    "scaled, one worker overflows": lambda strategy: scaled(strategy, overflow=True),
    "frozen": lambda strategy: loop(strategy, model=toy_model("frozen")),
    "tied": lambda strategy: loop(strategy, model=toy_model("tied")),
    "unreached": unreached,
    "groups": groups,
    "replaced gradients": replaced,
    "closure": closure,
    "reloaded": reloaded,
    "sharded loader": sharded_loader,
}
