"""Step-wise averaging and gossip: results computed by hand, bytes, and the peers that a worker waits for."""

from __future__ import annotations

import math
import threading
from functools import partial

import pytest
import torch
from torch import nn

from helpers import build, on_threads
from paceline.codecs import TensorSpec
from paceline.comm import Counter
from paceline.comm.threads import ThreadsComm
from paceline.strategies import Worker, stepwise
from paceline.train.context import Context
from replica_oracle import StepwiseMixing

# Results computed by hand, for models of one or a few numbers.


def worker_with(numbers: list[float], strategy: str, context: Context) -> Worker:
    """Return a worker with these numbers as its model and an optimiser that does nothing."""
    built, model = build(strategy), nn.Linear(len(numbers), 1, bias=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    worker = Worker(comm=context.comm, codec=built.codec, model=model, optimizer=optimizer)
    put(worker, numbers)
    built.setup(worker)
    worker.strategy = built  # type: ignore[attr-defined]
    return worker


def put(worker: Worker, numbers: list[float]) -> None:
    with torch.no_grad():
        worker.parameters[0].copy_(torch.tensor([numbers], dtype=torch.float64))


def averaged(context: Context, strategy: str, numbers: list[list[float]], steps: int = 1) -> list[float]:
    worker = worker_with(numbers[context.rank], strategy, context)
    for _ in range(steps):
        worker.strategy.after_step()  # type: ignore[attr-defined]
    return worker.parameters[0].flatten().tolist()


def test_one_number_each() -> None:
    numbers = [[1.0], [2.0], [3.0], [4.0]]
    whole = "stepwise:form=whole:rotate=false"
    assert on_threads(4, averaged, strategy=whole, numbers=numbers) == [[1.0], [1.5], [2.0], [2.5]]
    # With rotation the second trip starts at worker 3, the last one of the first trip: 3, 0, 1, 2.
    second = on_threads(4, averaged, strategy="stepwise:form=whole", numbers=numbers, steps=2)
    assert second == [[(2.5 + 1) / 2], [(2.5 + 1 + 1.5) / 3], [pytest.approx((2.5 + 1 + 1.5 + 2) / 4)], [2.5]]


def test_chunks_start_at_different_workers() -> None:
    numbers = [[1.0] * 4, [2.0] * 4, [3.0] * 4, [4.0] * 4]
    first = on_threads(4, averaged, strategy="stepwise", numbers=numbers)
    # Chunk c starts at worker c: chunk 1 visits 1, 2, 3, 0.
    assert [row[0] for row in first] == [1.0, 1.5, 2.0, 2.5]
    assert [row[1] for row in first] == [2.5, 2.0, 2.5, 3.0]
    assert [row[3] for row in first] == [2.5, pytest.approx(7 / 3), 2.5, 4.0]


def delayed_by_hand(context: Context) -> list[float]:
    worker = worker_with(
        [[1.0], [2.0], [3.0]][context.rank], "stepwise:form=whole:rotate=false:correct=delayed", context
    )
    strategy, seen = worker.strategy, []  # type: ignore[attr-defined]
    strategy.after_step()
    seen += worker.parameters[0].flatten().tolist()
    put(worker, [seen[-1] + [0.3, 0.6, 0.9][context.rank]])  # in place of an optimiser
    strategy.after_step()
    seen += worker.parameters[0].flatten().tolist()
    strategy.finish()
    return [*seen, *worker.parameters[0].flatten().tolist()]


def test_delayed_correction_by_hand() -> None:
    rows = on_threads(3, delayed_by_hand)
    # Partial means are 1, 1.5, 2; the full mean is 2. After updates of 0.3, 0.6, 0.9 and corrections of 1, 0.5 and 0,
    # the workers have 2 + update: 2.3, 2.6, 2.9, with the partial means 2.3, 2.45 and 2.6. At the end all have 2.6.
    expected = [[1.0, 2.3, 2.6], [1.5, 2.45, 2.6], [2.0, 2.6, 2.6]]
    assert rows == [pytest.approx(row) for row in expected]
    assert len({row[-1] for row in rows}) == 1


def test_equal_replicas_keep_their_bits() -> None:
    numbers = [[0.1, 1 / 3, 1e-9, 7.7]] * 3
    for strategy in ("stepwise", "stepwise:form=whole", "stepwise:correct=delayed", "gossip"):
        assert on_threads(3, averaged, strategy=strategy, numbers=numbers, steps=4) == numbers


# Traffic.


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("numel", [1, 7, 1000, 1003])
def test_chunks_are_half_of_ring(world_size: int, numel: int) -> None:
    spec = TensorSpec(numel, 4)
    stepwise, ring = build("stepwise"), build("ring")
    for step in range(world_size):
        sent, twice = [], []
        for rank in range(world_size):
            operations = stepwise.traffic([spec], rank, world_size, step)
            sent.append(sum(o.nbytes for o in operations if o.op == "send"))
            twice.append(sum(o.nbytes for o in ring.traffic([spec], rank, world_size, step) if o.op == "send"))
            messages = sum(o.op == "send" for o in operations)
            assert messages <= world_size - 1
            assert numel < world_size or messages == world_size - 1
            assert abs(sent[-1] - twice[-1] / 2) <= spec.itemsize * (world_size - 1)
        assert 2 * sum(sent) == sum(twice)


def test_sent_bytes_equal_received_bytes() -> None:
    spec = TensorSpec(1003, 4)
    for text in ("stepwise", "stepwise:form=whole", "stepwise:correct=delayed", "stepwise:exact_every=2", "gossip"):
        for step in range(5):
            sent, received = Counter(), Counter()
            for rank in range(5):
                for operation in build(text).traffic([spec], rank, 5, step):
                    key = (rank, operation.peer) if operation.op == "send" else (operation.peer, rank)
                    target = sent if operation.op == "send" else received
                    target.nbytes[key] = target.nbytes.get(key, 0) + operation.nbytes  # type: ignore[index]
            assert sent.nbytes == received.nbytes, f"{text}, step {step}"


def num_sends(context: Context, strategy: str, numbers: list[list[float]]) -> int:
    averaged(context, strategy, numbers)
    return sum(calls for (op, _), calls in context.comm.counter.calls.items() if op == "send")


def test_large_chunks_travel_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "split_pieces", partial(stepwise.split_pieces, piece_bytes=64))
    # Chunks of 20 numbers are 160 bytes: three pieces each, for two of the three chunks.
    numbers = [[float(rank * 100 + place) for place in range(60)] for rank in range(3)]
    assert on_threads(3, num_sends, strategy="stepwise", numbers=numbers) == [6] * 3
    found = on_threads(3, averaged, strategy="stepwise", numbers=numbers)
    expected = StepwiseMixing(3).mix(0, numbers)
    assert found == [pytest.approx(row, rel=1e-14) for row in expected]
    # More pieces than posted receives.
    numbers = [[float(rank * 1000 + place) for place in range(600)] for rank in range(3)]
    found = on_threads(3, averaged, strategy="stepwise:form=whole", numbers=numbers, steps=2)
    mixed = StepwiseMixing(3, form="whole")
    expected = mixed.mix(1, mixed.mix(0, numbers))
    assert found == [pytest.approx(row, rel=1e-14) for row in expected]


# Peers that a worker waits for.


def run_ahead(context: Context, gate: threading.Event, reached: list[int], strategy: str, steps: int) -> None:
    worker = worker_with([float(context.rank)], strategy, context)
    if context.rank == context.world_size - 1:
        assert gate.wait(15.0)
    for step in range(steps):
        worker.strategy.after_step()  # type: ignore[attr-defined]
        reached[context.rank] = step + 1
        # The last of the workers that do not wait resumes the paused one.
        if all(count >= steps for count in reached[:-1]):
            gate.set()


@pytest.mark.parametrize(("strategy", "steps"), [("stepwise:form=whole:rotate=false", 20), ("stepwise:form=whole", 1)])
def test_no_worker_waits_for_the_rest_of_the_ring(strategy: str, steps: int) -> None:
    # The last worker pauses until the others have made all their steps; if they needed it, none would end.
    gate, reached = threading.Event(), [0, 0, 0, 0]
    on_threads(4, run_ahead, gate=gate, reached=reached, strategy=strategy, steps=steps)
    assert gate.is_set()
    assert reached == [steps] * 4


class _Slow:
    """A send that completes when the test says so; only then is its data read."""

    def __init__(self, comm: ThreadsComm, tensor: torch.Tensor, peer: int, tag: int) -> None:
        self.comm, self.tensor, self.peer, self.tag, self.is_done = comm, tensor, peer, tag, False

    def wait(self) -> None:
        if not self.is_done:
            self.is_done = True
            ThreadsComm._isend(self.comm, self.tensor, self.peer, self.tag)


def lazily_sent(context: Context) -> list[list[float]]:
    """Let worker 0, at a fixed start, continue and change its weights before its first message is sent."""
    worker = worker_with([1.0 + context.rank], "stepwise:form=whole:rotate=false", context)
    strategy, comm, slow = worker.strategy, context.comm, []  # type: ignore[attr-defined]
    if comm.rank == 0:

        def isend(tensor: torch.Tensor, peer: int, tag: int) -> _Slow:
            slow.append(_Slow(comm, tensor, peer, tag))
            return slow[-1]

        comm._isend = isend
    seen = []
    for _ in range(2):
        strategy.after_step()
        seen.append(worker.parameters[0].flatten().tolist())
        put(worker, [worker.parameters[0].item() + 10])
    for send in slow:
        send.wait()
    return seen


def test_weights_in_flight_are_not_those_of_the_next_step() -> None:
    # Worker 1 receives the weights of worker 0 in each step, although they are sent after worker 0 continued.
    assert on_threads(2, lazily_sent) == [[[1.0], [11.0]], [[1.5], [11.25]]]


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_gossip_is_exact_after_log_n_quiet_steps(num_workers: int) -> None:
    numbers = [[float(rank)] for rank in range(num_workers)]
    steps = int(math.log2(num_workers))
    found = on_threads(num_workers, averaged, strategy="gossip", numbers=numbers, steps=steps)
    assert found == [[(num_workers - 1) / 2]] * num_workers
