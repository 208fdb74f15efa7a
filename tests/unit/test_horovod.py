"""Strategy `horovod` without its package, and with a stand-in that sums over our own comm on threads."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from helpers import build, on_threads
from paceline.comm import Comm
from paceline.errors import RunError, UsageError
from paceline.recipe import Recipe
from paceline.strategies import Worker, available_strategies, strategies
from paceline.study.catalogue import catalogue
from paceline.study.entries import make_entry
from paceline.train.context import Context

IS_HERE = not strategies.classes["horovod"].unavailable()
absent = pytest.mark.skipif(IS_HERE, reason="the package horovod can be imported here")


@absent
def test_an_unavailable_strategy_says_why() -> None:
    reason = strategies.classes["horovod"].unavailable()
    assert "horovod cannot be imported" in reason
    assert "horovod" not in available_strategies()
    with pytest.raises(UsageError, match="strategy 'horovod' cannot run here: the package horovod cannot be imported"):
        make_entry("horovod", Recipe())
    [row] = [r for r in catalogue(num_workers=2, model="lenet5", data="mnist-mini") if r["strategy"] == "horovod"]
    assert row["unavailable"] == reason


def test_threads_are_no_place_for_it() -> None:
    from paceline.comm.threads import ThreadsComm

    assert "threads" in strategies.classes["horovod"].unsupported(ThreadsComm)


class Stand(ModuleType):
    """A stand-in for horovod.torch with the functions that the strategy calls, for workers on threads."""

    Sum = "sum"

    def __init__(self, size: int | None = None) -> None:
        super().__init__("horovod.torch")
        self.place = threading.local()
        self.claimed_size = size

    def init(self) -> None:
        assert self.comm.world_size > 1

    @property
    def comm(self) -> Comm:
        comm: Comm = self.place.comm
        return comm

    def rank(self) -> int:
        return self.comm.rank

    def size(self) -> int:
        return self.claimed_size or self.comm.world_size

    def grouped_allreduce_(self, tensors: list[torch.Tensor], op: str, name: str) -> None:
        assert op == self.Sum
        assert name
        with self.comm.uncounted():
            for tensor in tensors:
                self.comm.all_reduce(tensor)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    module = Stand()
    monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.torch", module)
    return module


def averaged(context: Context, stand: Stand) -> tuple[list[float], Any]:
    stand.place.comm = context.comm
    strategy, model = build("horovod"), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = Worker(comm=context.comm, codec=strategy.codec, model=model, optimizer=optimizer)
    strategy.setup(worker)
    worker.weight = [0.5, 0.25, 0.25][context.rank] if context.world_size == 3 else 1.0
    for parameter in worker.parameters:
        parameter.grad = torch.full_like(parameter, float(context.rank + 1))
    strategy.after_backward()
    predicted = strategy.traffic(worker.specs, context.rank, context.world_size, 0)
    assert sum(context.comm.counter.nbytes.values()) == sum(operation.nbytes for operation in predicted)
    return worker.parameters[0].grad.flatten().tolist(), dict(context.comm.counter.nbytes)


def test_gradients_are_averaged_by_samples(stand: Stand) -> None:
    assert strategies.classes["horovod"].unavailable() == ""
    for gradients, counted in on_threads(3, averaged, stand=stand):
        assert gradients == [0.5 * 1 + 0.25 * 2 + 0.25 * 3] * 2
        assert counted == {("all_reduce", None): 3 * 4}


def test_one_worker_needs_no_horovod() -> None:
    class Absent(Stand):
        def init(self) -> None:
            raise AssertionError("one worker has nobody to meet")

    [(gradients, counted)] = on_threads(1, averaged, stand=Absent())
    assert gradients == [1.0, 1.0]
    assert counted == {}


def test_a_world_that_horovod_does_not_see_is_refused(stand: Stand) -> None:
    stand.claimed_size = 1  # as if workers were not started by horovodrun
    with pytest.raises(RunError, match=r"of 1, but this is worker . of 2; start workers with `horovodrun -np N`"):
        on_threads(2, averaged, stand=stand)


def test_a_codec_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot use codec bf16; remove the codec"):
        build("horovod+bf16").check(2, torch.optim.SGD)
