"""The interface of strategies: lifecycle methods, and optional capabilities with their defaults."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline.strategies
from helpers import build
from paceline.codecs import TensorSpec, build_codec
from paceline.comm import Operation
from paceline.comm.threads import ThreadsComm
from paceline.errors import UsageError
from paceline.recipe import Recipe
from paceline.strategies import Guarantee, Strategy, StrategySpec, Worker, capabilities, strategies
from paceline.strategies.capabilities import (
    STALENESS,
    Asynchronous,
    TunedValues,
    as_asynchronous,
    buffer_bytes_of,
    check_contract,
    check_model_of,
    drift_bound_of,
    hooked_parameters_of,
    is_synchronised,
    is_tried_by_tune,
    keep_alive_of,
    loss_scale_of,
    metrics_of,
    micro_batches_of,
    optimizer_of,
    optimizer_share_of,
    servers_of,
    staleness_bound_of,
    steps_to_synchronisation,
    tuned_options_of,
    zero_grad,
)
from paceline.study.candidates import tried_strategies
from paceline.study.entries import make_entry

CONTRACT = {
    *("guarantee", "unavailable", "unsupported", "check", "options", "option_fields"),
    *("setup", "on_gradient", "after_backward", "step", "after_step", "finish"),
    *("traffic", "traffic_period", "metrics", "state_dict", "load_state_dict"),
}


@dataclass(kw_only=True)
class Plain(Strategy):
    """A strategy without any capability, which sends nothing."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.NONE

    def traffic(self, tensors: Sequence[TensorSpec], rank: int, world_size: int, step: int) -> list[Operation]:
        del tensors, rank, world_size, step
        return []


def test_the_contract_is_the_lifecycle() -> None:
    def is_member(value: Any) -> bool:
        return inspect.isroutine(value) or isinstance(value, property)

    public = {name for name, value in vars(Strategy).items() if not name.startswith("_")}
    assert {name for name in public if is_member(inspect.getattr_static(Strategy, name))} == CONTRACT


def test_a_plain_strategy_has_every_default() -> None:
    strategy, tensors, model = Plain(codec=build_codec("fp32")), [TensorSpec(10, 4)], nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check_contract(Plain)
    strategy.setup(Worker(comm=ThreadsComm.world(1)[0], codec=strategy.codec, model=model, optimizer=optimizer))
    assert servers_of(strategy, 4) == 0
    assert as_asynchronous(strategy) is None
    assert staleness_bound_of(strategy, 4) is None
    assert (is_synchronised(strategy, 0), steps_to_synchronisation(strategy)) == (True, 1)
    assert (micro_batches_of(strategy), loss_scale_of(strategy)) == (1, 1.0)
    assert (optimizer_of(strategy), optimizer_share_of(strategy, 4)) == (optimizer, 1.0)
    assert buffer_bytes_of(strategy, tensors, rank=0, world_size=4) == 0
    assert hooked_parameters_of(strategy) == []
    assert (tuned_options_of(Plain), is_tried_by_tune(Plain)) == ({}, False)
    assert metrics_of(strategy) == {}
    assert keep_alive_of(strategy) is None
    check_model_of(strategy, tensors)
    model(torch.ones(1, 2)).sum().backward()
    zero_grad(strategy)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_options_switch_capabilities_off() -> None:
    modes = ["", ":mode=async", ":mode=bounded"]
    found = [build(f"parameter-server{mode}:servers=2") for mode in modes]
    assert [servers_of(strategy, 4) for strategy in found] == [2, 2, 2]
    assert [as_asynchronous(strategy) is None for strategy in found] == [True, False, False]
    assert [staleness_bound_of(strategy, 4) for strategy in found] == [None, None, 15]
    assert metrics_of(found[0]) == {}


def test_staleness_is_declared_by_the_capability() -> None:
    @dataclass(kw_only=True)
    class Late(Plain, Asynchronous):
        """An asynchronous strategy with gradients that are one and three updates old."""

        is_asked_to_stop = False
        staleness_updates = (1, 3, 3)

        def staleness_bound(self, num_workers: int) -> int | None:
            return num_workers

        def ask_all_to_stop(self) -> None: ...

        def wait_for_others(self) -> None: ...

    found = metrics_of(Late(codec=build_codec("fp32")))
    assert found == {STALENESS: {"counts": {"1": 1, "3": 2}, "max": 3, "mean": pytest.approx(7 / 3)}}


def test_every_capability_with_a_method_is_checked() -> None:
    classes = [
        value
        for value in vars(capabilities).values()
        if inspect.isclass(value) and value.__module__ == capabilities.__name__ and inspect.isabstract(value)
    ]
    assert set(classes) == set(capabilities._CAPABILITIES)
    import_home = vars(paceline.strategies)
    assert all(cls.__name__ in import_home for cls in classes)


@pytest.mark.parametrize(
    ("member", "capability"),
    [("num_servers", "Servers"), ("is_asynchronous", "Asynchronous"), ("drift_bound", "Drifting")],
)
def test_part_of_a_capability_without_the_rest_is_refused(member: str, capability: str) -> None:
    stray = type("Stray", (Plain,), {member: lambda *_: 0})
    with pytest.raises(UsageError, match=f"Stray defines {member} .*; add {capability} of paceline.strategies"):
        check_contract(stray)


def test_a_missing_method_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from paceline import GradientAveraging, Servers\n"
        "@dataclass(kw_only=True)\n"
        "class Mine(GradientAveraging, Servers):\n"
        "    '''Nothing.'''\n"
        "    def sum(self, tensor): ...\n"
        "    def sum_traffic(self, spec, rank, world_size): return []\n"
    )
    with pytest.raises(UsageError, match=r"strategy class Mine must define num_servers, serve"):
        make_entry(f"{file}:Mine", Recipe())


def test_a_bound_that_is_promised_must_be_stated() -> None:
    with pytest.raises(UsageError, match=r"strategy Plain .* no drift bound; add Drifting of paceline.strategies"):
        drift_bound_of(Plain(codec=build_codec("fp32")), 4)


@pytest.mark.parametrize("name", list(strategies.classes))
def test_every_strategy_states_what_its_guarantee_needs(name: str) -> None:
    strategy = StrategySpec(name).build()
    if strategy.guarantee is Guarantee.PARTIAL:
        assert drift_bound_of(strategy, 4) > 0
    assert (strategy.guarantee is Guarantee.STALE) == (as_asynchronous(strategy) is not None)


def test_strategies_declare_what_tune_tries_and_varies() -> None:
    expected = {"overlap", "ddp", "sharded", "all-reduce", "ring", "local-sgd", "stepwise"}
    assert set(tried_strategies()) == expected
    varied = {name: dict(tuned_options_of(cls)) for name, cls in strategies.classes.items() if tuned_options_of(cls)}
    assert varied == {
        "ddp": {"bucket_mb": TunedValues.BUCKET_MB},
        "local-sgd": {"sync_every": TunedValues.PERIOD_STEPS},
        "overlap": {"bucket_mb": TunedValues.BUCKET_MB},
        "sharded": {"bucket_mb": TunedValues.BUCKET_MB},
    }
    for name, options in varied.items():
        assert set(options) <= set(strategies.classes[name].option_fields())


def test_the_table_of_capabilities_names_each_and_what_it_requires() -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    defined = [
        cls
        for cls in vars(capabilities).values()
        if inspect.isclass(cls) and cls.__module__ == capabilities.__name__ and not issubclass(cls, enum.Enum)
    ]
    assert set(rows) == {cls.__name__ for cls in defined} - {"ScaledLoss"}  # a part of two other capabilities
    for name, requirement in rows.items():
        required = getattr(getattr(paceline.strategies, name), "__abstractmethods__", frozenset())
        if required:
            assert set(re.findall(r"`(\w+)`", requirement)) == required, name
        else:
            assert requirement.startswith("nothing"), name
