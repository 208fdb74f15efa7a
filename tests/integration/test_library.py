"""The library on worker processes: where strategies are called, what is refused, what a user's mistake looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import library_cases
import library_uses
import paceline
from helpers import TESTS, build, exact_without_servers, on_pool
from library_cases import alone, on, sentence
from library_uses import USES, in_session
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.library.world import World
from paceline.strategies import DetectsUnreached, strategies
from toys import toy_model

TOLERANCE = 1e-9  # float64 rounds at 1e-16; a few steps amplify that by orders, not by seven
MADE_UP = TESTS / "library_strategies.py"
SOME = ["all-reduce", "ring", "ddp"]


def assert_close(found: list[float], expected: list[float], tolerance: float = TOLERANCE) -> None:
    a, b = torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    assert a.shape == b.shape
    assert float((a - b).norm() / b.norm()) <= tolerance


# Where strategies are called.


@pytest.mark.parametrize("use", USES)
def test_a_strategy_that_starts_during_backward(pool: LocalPool, use: str) -> None:
    expected = in_session(World(), USES[use], "all-reduce")
    workers = on_pool(pool, 2, library_uses.run_use, use=use, strategy=f"{MADE_UP}:Early")
    assert workers[0] == workers[1]
    for found, row in zip(workers[0], expected, strict=True):
        assert_close(found, row)


@pytest.mark.parametrize("strategy", exact_without_servers())
def test_what_is_held_back_is_not_sent(pool: LocalPool, strategy: str) -> None:
    for counted, predicted, num_parameters in on(pool, 2, "traffic", strategy=strategy):
        assert counted
        # A strategy that carries along whether anybody reached a parameter sends one number more for each.
        more = 8 * num_parameters if issubclass(strategies.get(strategy), DetectsUnreached) else 0
        for (op, nbytes), (expected_op, expected) in zip(counted, sorted(predicted), strict=True):
            # A user's loop may look at all gradients, so there sharded gives every worker every sum.
            assert op in (expected_op, ("all_reduce", None) if strategy == "sharded" else expected_op)
            assert expected <= nbytes <= expected + more


def test_a_replica_that_becomes_different_is_found(pool: LocalPool) -> None:
    workers = on(pool, 3, "replicas_checked", strategy="ring", every=2)
    assert sentence(workers).startswith("replicas differ after step 1: the parameters of worker 1 are not those of")
    assert "differ by design (guarantee PARTIAL)" in sentence(
        on(pool, 3, "replicas_checked", strategy="gossip", every=2)
    )
    assert "0 or more, not -1" in sentence(on(pool, 3, "replicas_checked", strategy="ring", every=-1))


def test_weights_are_averaged_after_steps_and_at_the_end(pool: LocalPool) -> None:
    workers = on(pool, 3, "weights_averaged", steps=3)
    first, second, third = zip(*(worker["digests"] for worker in workers), strict=True)
    assert len(set(first)) == len(set(third)) == 3
    assert len(set(second)) == 1
    assert len({worker["finished"] for worker in workers}) == 1
    assert all(worker["state"] == {"0.num_steps": 3} and worker["loaded"] == 7 for worker in workers)


def test_a_strategy_that_takes_the_step(pool: LocalPool) -> None:
    workers = on(pool, 2, "own_step")
    expected = alone_own_step()
    for worker in workers:
        assert worker["lr"] == worker["state_lr"] == pytest.approx(0.1 / 8)
        assert worker["values"] == workers[0]["values"]
        assert_close(worker["values"], expected)


def alone_own_step() -> list[float]:
    """The same steps by torch's own SGD on every sample."""
    paceline.init()
    model = toy_model("plain")
    for number in range(3):
        images, labels = library_uses.batch(number)
        loss = nn.functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 / 2**number * gradient
    paceline.finish()
    return library_uses.values(model)


@pytest.mark.parametrize("strategy", SOME)
def test_finish_leaves_no_hook(pool: LocalPool, strategy: str) -> None:
    for during, after in on(pool, 2, "no_hook_is_left", strategy=strategy):
        assert during > 0
        assert after == 0


@pytest.mark.usefixtures("session")
def test_one_worker_has_no_hook_at_all() -> None:
    model = toy_model("plain")
    optimizer = library_uses.sgd(model)
    for strategy in ("all-reduce", "ddp"):
        assert paceline.parallel(model, optimizer, strategy) == (model, optimizer)
    assert library_cases.num_hooks(model, optimizer) == 0
    with paceline.no_sync():
        pass


@pytest.mark.parametrize("case", ["reentrant", "failed_backward", "all_held"])
@pytest.mark.parametrize("strategy", ["all-reduce", "ring"])
def test_unusual_backwards(pool: LocalPool, strategy: str, case: str) -> None:
    expected = alone(case, strategy="all-reduce")
    for found in on(pool, 2, case, strategy=strategy):
        assert_close(found, expected)


def test_two_models_do_not_meet(pool: LocalPool) -> None:
    expected = alone("two_models")
    for found in on(pool, 2, "two_models"):
        assert_close(found, expected)


# Two steps of tanh layers: each rounds a few times at the type's precision, and means of workers once more.
PRECISION = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}


@pytest.mark.parametrize("kinds", [["float32"], ["float16"], ["bfloat16"], ["bfloat16", "float32", "float16"]])
@pytest.mark.parametrize("strategy", SOME)
def test_number_types(pool: LocalPool, strategy: str, kinds: list[str]) -> None:
    expected = alone("dtypes", strategy=strategy, kinds=kinds)
    workers = on(pool, 2, "dtypes", strategy=strategy, kinds=kinds)
    assert workers[0] == workers[1]
    assert_close(workers[0], expected, max(PRECISION[kind] for kind in kinds))


def test_batchnorm_statistics_are_averaged_at_the_end(pool: LocalPool) -> None:
    workers = on(pool, 2, "batchnorm")
    befores, afters, digests = zip(*workers, strict=True)
    assert befores[0] != befores[1]
    assert afters[0] == afters[1]
    assert afters[0] == pytest.approx([(a + b) / 2 for a, b in zip(*befores, strict=True)])
    assert digests[0] == digests[1]


# A user's mistakes.


def test_identical_batches(pool: LocalPool) -> None:
    assert sentence(on(pool, 2, "identical")).startswith(
        "workers 0 and 1 got identical batches, so the additional worker adds nothing: use paceline.shard"
    )
    assert on(pool, 2, "identical", check_data=False) == ["trained"] * 2
    assert on(pool, 2, "identical", constant=True) == ["trained"] * 2


@pytest.mark.parametrize("strategy", ["all-reduce", "ring", f"{MADE_UP}:Early"])
def test_a_worker_whose_loss_reaches_nothing_joins_with_its_step(pool: LocalPool, strategy: str) -> None:
    workers = on(pool, 2, "reaches_nothing", strategy=strategy)
    assert workers[0] == workers[1]
    assert workers[0] != library_uses.values(toy_model("plain"))


def test_workers_out_of_step(pool: LocalPool) -> None:
    workers = on(pool, 2, "out_of_step")
    assert "workers are out of step: worker 0 is in backward 2 of step 0" in sentence(workers)
    assert "worker 1 is in backward 1 of step 1" in workers[1]["error"]


def test_ddp_with_every_backward_held_back(pool: LocalPool) -> None:
    assert "every backward of this step ran inside no_sync()" in sentence(on(pool, 2, "all_held", strategy="ddp"))


def test_the_model_inside_of_what_ddp_wraps(pool: LocalPool) -> None:
    assert sentence(on(pool, 2, "wrong_model")).endswith("call the model that parallel() returned")


def test_parameters_unfrozen_too_late(pool: LocalPool) -> None:
    assert sentence(on(pool, 2, "unfrozen_later")).startswith("2 parameters have a gradient but were frozen")


@pytest.mark.parametrize("what", ["models", "strategies", "buffers"])
def test_workers_that_were_given_different_things(pool: LocalPool, what: str) -> None:
    expected = f"workers 0 and 1 called parallel() with different {what}; pass the same on every worker"
    assert sentence(on(pool, 3, "different", what=what)) == expected


def test_sparse_gradients(pool: LocalPool) -> None:
    assert "sparse gradients cannot be averaged" in sentence(on(pool, 2, "sparse"))


def test_what_a_strategy_refuses(pool: LocalPool) -> None:
    served = sentence(on(pool, 2, "refused", text=f"{MADE_UP}:Served"))
    assert "needs server processes, which the library does not start; use `paceline run`" in served
    refused = sentence(on(pool, 2, "refused", text=f"{MADE_UP}:OwnStep", adam=True))
    assert refused == "strategy OwnStep takes steps of SGD, not of Adam"


@pytest.mark.usefixtures("session")
def test_words_that_make_no_strategy() -> None:
    model = toy_model("plain")
    optimizer = library_uses.sgd(model)
    with pytest.raises(UsageError, match="unknown strategy 'rng'; did you mean 'ring'"):
        paceline.parallel(model, optimizer, "rng")
    with pytest.raises(UsageError, match="codec= conflicts with a Strategy object"):
        paceline.parallel(model, optimizer, build("ring"), codec="fp16")
    assert paceline.parallel(model, optimizer, build("ring")) == (model, optimizer)
    with pytest.raises(UsageError, match="the optimizer is a list"):
        paceline.parallel(model, [], "ring")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the optimizer has 4 parameters that are not the model's"):
        paceline.parallel(toy_model("plain"), optimizer)
    with pytest.raises(UsageError, match="no trainable parameter"):
        paceline.parallel(toy_model("plain").requires_grad_(requires_grad=False), optimizer)


def test_the_order_of_calls() -> None:
    model = toy_model("plain")
    with pytest.raises(UsageError, match=r"without a session; call paceline.init\(\) first"):
        paceline.parallel(model, library_uses.sgd(model))
    with pytest.raises(UsageError, match="without a session"):
        paceline.finish()
    assert (paceline.rank(), paceline.world_size()) == (0, 1)
    paceline.init()
    with pytest.raises(UsageError, match=r"paceline.init\(\) was called twice; call paceline.finish\(\) in between"):
        paceline.init()
    assert paceline.state_dict() == {}
    with pytest.raises(UsageError, match=r"'0.x' belongs to no model of this session"):
        paceline.load_state_dict({"0.x": torch.zeros(1)})
    paceline.finish()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "pass world_size and master_addr and master_port too"),
        (
            {"rank": 2, "world_size": 2, "master_addr": "127.0.0.1", "master_port": 1},
            "rank=2 with world_size=2; pass",
        ),
        ({"comm": "threads"}, "connects threads of one process"),
        ({"comm": "pigeon"}, "unknown comm 'pigeon'"),
    ],
)
def test_a_place_that_is_none(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        paceline.init(**arguments)
    assert paceline.world_size() == 1
