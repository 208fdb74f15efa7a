"""Mistakes of users, as cases for library_cases: each raises an error or reports that none was detected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import paceline
from library_uses import batch, sgd, step, values
from toys import toy_model


def wrong_model() -> Any:
    """Call forward on the model that ddp wrapped instead of on the wrapper."""
    model = toy_model("plain")
    _, optimizer = paceline.parallel(model, sgd(model), "ddp")
    step(model, optimizer, 0)
    return "nothing was noticed"


def identical(check_data: bool = True, constant: bool = False) -> Any:
    """Train with the same batch on every worker."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), "all-reduce", check_data=check_data)
    generator = torch.Generator().manual_seed(0)
    images = torch.ones(2, 2, 6, 6) if constant else torch.randn(2, 2, 6, 6, generator=generator)
    F.cross_entropy(replica(images.double()), torch.tensor([0, 1])).backward()
    optimizer.step()
    return "trained"


def reaches_nothing(strategy: str) -> Any:
    """Use a loss on worker 1 that depends on no parameter: it synchronises in its optimiser step."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    images, labels = batch(0)
    loss = F.cross_entropy(replica(images), labels)
    if paceline.rank() == 1:
        loss = torch.ones((), requires_grad=True)
    loss.backward()
    optimizer.step()
    return values(model)


def out_of_step() -> Any:
    """Run two backwards in the first step of worker 0 and one in that of worker 1."""
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), "all-reduce")
    images, labels = batch(0)
    F.cross_entropy(replica(images), labels).backward()
    if paceline.rank() == 1:
        optimizer.step()
    F.cross_entropy(replica(images), labels).backward()
    return "nothing was noticed"


def all_held(strategy: str) -> Any:
    model = toy_model("plain")
    replica, optimizer = paceline.parallel(model, sgd(model), strategy)
    images, labels = batch(0)
    with paceline.no_sync():
        F.cross_entropy(replica(images), labels).backward()
    optimizer.step()
    return values(model)


def unfrozen_later() -> Any:
    model = toy_model("frozen")
    replica, optimizer = paceline.parallel(model, sgd(model), "all-reduce")
    model.conv.requires_grad_()
    step(replica, optimizer, 0)
    return "nothing was noticed"


def different(what: str) -> Any:
    odd = paceline.rank() == 1
    model = toy_model("tied" if odd and what == "models" else "plain")
    strategy = "ring" if odd and what == "strategies" else "all-reduce"
    if odd and what == "buffers":
        model.register_buffer("more", torch.zeros(1))
    paceline.parallel(model, sgd(model), strategy)
    return "nothing was noticed"


def refused(text: str, adam: bool = False) -> Any:
    model = toy_model("plain")
    kind = torch.optim.Adam if adam else torch.optim.SGD
    paceline.parallel(model, kind(model.parameters(), lr=0.1), text)
    return "nothing was refused"


def sparse() -> Any:
    model = nn.Embedding(5, 2, sparse=True)
    replica, _ = paceline.parallel(model, torch.optim.SGD(model.parameters(), lr=0.1), "all-reduce")
    replica(torch.tensor([paceline.rank()])).sum().backward()
    return "nothing was noticed"


MISTAKES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        wrong_model,
        identical,
        reaches_nothing,
        out_of_step,
        all_held,
        unfrozen_later,
        different,
        refused,
        sparse,
    )
}
