"""Parameter servers: exact with mode=sync; with async and bounded, staleness is measured and limited."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import jobs
from helpers import build, on_threads
from paceline.codecs import TensorSpec
from paceline.comm.threads import ThreadsComm
from paceline.data import Batch, Data, Dataset
from paceline.errors import UsageError
from paceline.launch.local import LocalPool
from paceline.strategies import Guarantee, StrategySpec, Worker
from paceline.strategies.capabilities import metrics_of
from paceline.strategies.serving import split_tensors
from paceline.study.verify import cases, verify
from paceline.train.context import Context
from paceline.train.evaluate import BATCH, Score
from paceline.train.replicas import parameter_digest
from paceline.train.trainer import Trainer
from toys import toy_data, toy_model, toy_recipe

# float64 rounds at 1e-16; six steps of training amplify that by much less than seven orders of magnitude.
TOLERANCE = 1e-9
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer.name": "sgd", "optimizer.lr": 0.05, "optimizer.momentum": 0.9, "optimizer.nesterov": True},
    "adam": {"optimizer.name": "adam", "optimizer.lr": 0.01},
    "lars": {"optimizer.name": "lars", "optimizer.lr": 2.0, "optimizer.momentum": 0.9},
    "lamb": {"optimizer.name": "lamb", "optimizer.lr": 0.05, "optimizer.weight_decay": 0.01},
}


def assert_exact(workers: list[dict[str, Any]]) -> None:
    for worker in workers:
        assert len(worker["steps"]) == worker["num_expected"] > 0
        for step, row in enumerate(worker["steps"]):
            assert row["relative_error"] <= TOLERANCE, step
            assert row["digest"] == workers[0]["steps"][step]["digest"]
            assert row["counted"] == row["predicted"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sync_equals_the_oracle(world_size: int, servers: int, optimizer: str) -> None:
    strategy = f"parameter-server:servers={servers}"
    workers = on_threads(world_size, jobs.certify, strategy=strategy, changes=OPTIMIZERS[optimizer])
    assert_exact(workers)
    peers = {peer for row in workers[0]["steps"] for _, peer in row["counted"]}
    assert peers == set(range(world_size, world_size + servers))


@pytest.mark.parametrize("model", ["frozen", "sometimes", "tied"])
def test_sync_with_unusual_models(model: str) -> None:
    changes = {"optimizer.weight_decay": 0.01, "train.channels_last": True}
    assert_exact(on_threads(3, jobs.certify, strategy="parameter-server:servers=2", changes=changes, model=model))


@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_learning_rates_reach_the_server(schedule: str) -> None:
    # The learning rate changes in every step, or drops to a tenth after the first epoch.
    changes = {"schedule.name": schedule, "schedule.step_epochs": 1, "schedule.warmup": 0.5}
    assert_exact(on_threads(2, jobs.certify, strategy="parameter-server:servers=2", changes=changes))


@pytest.mark.parametrize("mode", ["async", "bounded:max_staleness=0"])
def test_one_worker_alone_is_exact_in_every_mode(mode: str) -> None:
    changes = OPTIMIZERS["adam"]
    [worker] = on_threads(1, jobs.certify, strategy=f"parameter-server:servers=2:mode={mode}", changes=changes)
    assert_exact([worker])


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=30),
    num_servers=st.integers(1, 8),
)
def test_tensors_are_split_whole_and_evenly(sizes: list[int], num_servers: int) -> None:
    tensors = [TensorSpec(size, 4) for size in sizes]
    shares = split_tensors(tensors, num_servers)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    assert shares == split_tensors(tensors, num_servers)
    assert all(shares[: len(sizes)])  # no server has none while another has two
    # Greedy: without its smallest tensor, no share is larger than the smallest share.
    loads = [sum(sizes[index] for index in share) for share in shares]
    for share, load in zip(shares, loads, strict=True):
        assert load - min((sizes[index] for index in share), default=0) <= min(loads)


class World:
    """Workers that step when the test tells them to, with servers on threads."""

    def __init__(self, text: str, num_workers: int, weights: list[float]) -> None:
        strategies = [StrategySpec.parse(text).build() for _ in range(num_workers)]
        num_servers = strategies[0].num_servers(num_workers)
        wide = ThreadsComm.world(num_workers + num_servers, timeout_s=10.0)
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._serve, args=(text, c), daemon=True) for c in wide[num_workers:]]
        for thread in self.threads:
            thread.start()
        self.strategies, self.models = strategies, []
        for comm, strategy, weight in zip(ThreadsComm.world(num_workers), strategies, weights, strict=True):
            worker = self._worker(comm, strategy)
            worker.servers, worker.weight = wide[comm.rank], weight
            strategy.setup(worker)
            self.models.append(worker.model)

    def _worker(self, comm: ThreadsComm, strategy: Any) -> Worker:
        model = torch.nn.Linear(1, 1).double()
        with torch.no_grad():
            model.weight.fill_(1.0)
            model.bias.fill_(-1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        return Worker(comm=comm, codec=strategy.codec, model=model, optimizer=optimizer)

    def _serve(self, text: str, comm: ThreadsComm) -> None:
        try:
            strategy = build(text)
            strategy.serve(self._worker(comm, strategy))
        except BaseException as error:
            self.errors.append(error)

    def step(self, rank: int, gradient: float) -> None:
        for parameter in self.models[rank].parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        self.strategies[rank].step()

    def values(self, rank: int) -> tuple[float, float]:
        model = self.models[rank]
        return float(model.weight.detach()), float(model.bias.detach())

    def finish(self) -> None:
        endings = [threading.Thread(target=strategy.finish, daemon=True) for strategy in self.strategies]
        for thread in endings:
            thread.start()
        for thread in [*endings, *self.threads]:
            thread.join(10)
            assert not thread.is_alive()
        assert self.errors == []


@pytest.mark.parametrize("servers", [1, 2])
def test_async_applies_every_gradient_and_counts_staleness(servers: int) -> None:
    world = World(f"parameter-server:mode=async:servers={servers}", 2, weights=[0.25, 0.75])
    value, momentum = 1.0, 0.0
    seen = []
    for rank, gradient in [(0, 1.0), (1, 2.0), (1, -1.0), (0, 4.0), (0, 1.0)]:
        # SGD with momentum 0.5 on the server, and the learning rate times the worker's share of the batch.
        momentum = 0.5 * momentum + gradient
        value -= 0.5 * [0.25, 0.75][rank] * momentum
        world.step(rank, gradient)
        seen.append(world.values(rank))
        assert seen[-1] == (value, value - 2.0)  # powers of two: exact
    assert world.values(1) == seen[2]  # a worker receives updates only with its own answers
    world.finish()
    assert world.values(0) == world.values(1) == (value, value - 2.0)
    # Staleness of worker 0: 0, then 2 (both updates of worker 1), then 0; of worker 1: 1 (worker 0's first), then 0.
    first, second = (metrics_of(strategy)["staleness_updates"] for strategy in world.strategies)
    assert first == {"counts": {"0": 2 * servers, "2": servers}, "max": 2, "mean": pytest.approx(2 / 3)}
    assert second == {"counts": {"0": servers, "1": servers}, "max": 1, "mean": pytest.approx(1 / 2)}


def test_a_worker_without_samples_makes_no_update() -> None:
    world = World("parameter-server:mode=async", 2, weights=[1.0, 0.0])
    world.step(0, 1.0)
    world.step(1, 0.0)
    assert world.values(1) == world.values(0) == (0.5, -1.5)
    world.step(0, 1.0)  # momentum is 0.5 + 1: the step without samples did not change it
    assert world.values(0) == (-0.25, -2.25)
    world.finish()
    assert world.values(1) == (-0.25, -2.25)
    assert metrics_of(world.strategies[0])["staleness_updates"]["counts"] == {"0": 2}
    assert metrics_of(world.strategies[1])["staleness_updates"] == {"counts": {}, "max": 0, "mean": 0.0}


def run_ahead(context: Context, strategy: str, changes: dict[str, Any], gate: threading.Event, until: int) -> Any:
    """Train; rank 1 pauses after its first step until rank 0 has done the step `until`."""
    trainer = Trainer(
        toy_recipe(context.world_size, changes),
        StrategySpec.parse(strategy).build(),
        toy_data(),
        context,
        toy_model("plain"),
    )

    def look(step: int) -> None:
        if context.rank == 0 and step == until:
            gate.set()
        if context.rank == 1 and step == 0:
            assert gate.wait(10), "rank 0 cannot get ahead"

    trainer.run(look)
    trainer.strategy.finish()
    return {"metrics": metrics_of(trainer.strategy), "digest": parameter_digest(trainer.model)}


STEPS = 6


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("allowed", [0, 1, 2])
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_bound_is_reached_and_never_passed(world_size: int, allowed: int, servers: int) -> None:
    text = f"parameter-server:mode=bounded:max_staleness={allowed}:servers={servers}"
    gate = threading.Event()
    workers = on_threads(world_size, run_ahead, strategy=text, changes={}, gate=gate, until=allowed)
    assert max(worker["metrics"]["lead_steps"]["max"] for worker in workers) == allowed
    bound = build(text).staleness_bound(world_size)
    assert bound == (world_size - 1) * (2 * allowed + 1)
    assert all(worker["metrics"]["staleness_updates"]["max"] <= bound for worker in workers)
    assert len({worker["digest"] for worker in workers}) == 1


def test_without_a_bound_a_worker_may_do_all_its_steps_first() -> None:
    gate = threading.Event()
    fast, slow = on_threads(
        2, run_ahead, strategy="parameter-server:mode=async", changes={}, gate=gate, until=STEPS - 1
    )
    # When the slow worker has done its first step, the fast one may have done some already.
    assert fast["metrics"]["lead_steps"]["max"] >= STEPS - 1
    # The fast worker makes its updates before the second one of the slow worker, so one of the slow worker's is stale.
    assert slow["metrics"]["staleness_updates"]["max"] >= STEPS // 2
    assert build("parameter-server:mode=async").staleness_bound(2) is None
    assert fast["digest"] == slow["digest"]


def without_collectives(context: Context, strategy: str, changes: dict[str, Any], model: str) -> list[float]:
    """Train and evaluate during training on a comm that refuses collectives after the first step."""
    comm = context.comm
    trainer = Trainer(
        toy_recipe(context.world_size, changes),
        StrategySpec.parse(strategy).build(),
        toy_data(test_samples=600),
        context,
        toy_model(model),
    )
    names = ["_all_reduce", "_iall_reduce", "_broadcast", "_gather", "_scatter", "_all_gather"]

    def forbidden(*_: Any) -> None:
        raise AssertionError("a collective in a loop of workers at their own pace")

    def forbid(step: int) -> None:
        for name in names if step == 0 else []:
            setattr(comm, name, forbidden)

    trainer.run(forbid)
    for name in names:
        delattr(comm, name)
    trainer.strategy.finish()
    return [row["loss"] for row in trainer.history.evaluations]


def test_an_asynchronous_loop_contains_no_collective() -> None:
    changes = {"train.eval_every": 1, "train.batchnorm": "average", "train.batch_size": 12}
    arguments = {"strategy": "parameter-server:mode=async", "changes": changes, "model": "normalised"}
    workers = on_threads(2, without_collectives, **arguments)
    assert [len(losses) for losses in workers] == [2, 2]


class SlowTest(Dataset):
    """Test data of 16 batches. Together they take longer than the time limit of one wait, each far less."""

    def __len__(self) -> int:
        return 16 * BATCH

    def batch(self, indices: torch.Tensor, epoch: int) -> Batch:  # noqa: ARG002
        time.sleep(0.4)
        return torch.zeros(len(indices), 2, 6, 6, dtype=torch.float64), torch.zeros(len(indices), dtype=torch.int64)


def evaluate_slowly(context: Context, strategy: str, changes: dict[str, Any]) -> list[Any]:
    data = Data(toy_data().train, SlowTest(), shape=(2, 6, 6), num_classes=3)
    recipe = toy_recipe(context.world_size, changes)
    trainer = Trainer(recipe, StrategySpec.parse(strategy).build(), data, context, toy_model("plain"))
    if context.rank == 1:
        trainer._evaluate = lambda *_, **__: Score(0.0, 0.0)  # type: ignore[method-assign]
    trainer.run()
    trainer.strategy.finish()
    return trainer.history.evaluations


@pytest.mark.parametrize(("mode", "world_size"), [("sync", 1), ("async", 1), ("async", 2)])
@pytest.mark.slow
def test_an_evaluation_may_take_longer_than_the_time_limit(mode: str, world_size: int) -> None:
    # One of two workers does not evaluate: it finishes long before the other, and waits for it.
    changes = {"train.eval_every": 2}
    arguments = {"strategy": f"parameter-server:mode={mode}", "changes": changes, "timeout_s": 5.0}
    assert [len(rows) for rows in on_threads(world_size, evaluate_slowly, **arguments)] == [1] * world_size


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("parameter-server:servers=2", marks=pytest.mark.slow),
        pytest.param("parameter-server:servers=2+fp16", marks=pytest.mark.slow),
        pytest.param("parameter-server:average=weights", marks=pytest.mark.slow),
        "parameter-server:mode=async",
        pytest.param("parameter-server:mode=async:servers=2+bf16", marks=pytest.mark.slow),
        "parameter-server:mode=bounded:max_staleness=1",
        pytest.param("ring:average=weights", marks=pytest.mark.slow),
        pytest.param("ring-reduce:average=weights", marks=pytest.mark.slow),
    ],
)
def test_certificate_over_gloo(pool: LocalPool, strategy: str) -> None:
    rows = verify(cases([strategy], [1, 3], ["lenet5"]), pool, on_case=lambda _: None)
    for row in rows:
        assert row["guarantee"] == build(strategy).guarantee.value
        assert row["passed"], row
        assert row["first_divergence"] is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parameter-server:servers=0", "option servers of strategy parameter-server must be at least 1, not 0"),
        ("parameter-server:max_staleness=-1", "option max_staleness of .* must be at least 0, not -1"),
        ("parameter-server:max_staleness=1", "max_staleness of .* has no effect with mode=sync; remove it"),
        ("parameter-server:mode=async:max_staleness=1", "max_staleness of .* has no effect with mode=async"),
        ("parameter-server:mode=bounded:max_staleness=few", "must be a whole number, not 'few'"),
        ("parameter-server:mode=slow", "option mode of .* must be sync or async or bounded, not 'slow'"),
        (
            "parameter-server:mode=async:average=weights",
            "cannot average weights with mode=async, because one",
        ),
        ("parameter-server:average=weights+fp16", "average=weights cannot use codec fp16"),
    ],
)
def test_unsupported_options_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build(text)


def test_guarantees() -> None:
    found = {
        text: build(f"parameter-server{text}").guarantee
        for text in ("", "+bf16", ":average=weights", ":mode=async", ":mode=bounded", ":mode=async+fp16")
    }
    assert list(found.values()) == [
        Guarantee.EXACT,
        Guarantee.LOSSY,
        Guarantee.PERIODIC,
        Guarantee.STALE,
        Guarantee.STALE,
        Guarantee.STALE,
    ]
    assert build("parameter-server:servers=3").num_servers(8) == 3
    assert [build(f"parameter-server{text}").is_asynchronous for text in ("", ":mode=async")] == [False, True]
