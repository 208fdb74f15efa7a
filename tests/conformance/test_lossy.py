"""Every lossy codec under every strategy that supports it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import jobs
from helpers import build, is_possible, on_pool, on_threads, on_threads_supported
from paceline.codecs import codecs
from paceline.data import ShardPlan
from paceline.launch.local import LocalPool
from paceline.strategies import Guarantee, available_strategies
from paceline.strategies.capabilities import servers_of
from paceline.strategies.gradients import GradientAveraging
from paceline.study.verify import cases, verify
from paceline.train.oracle import oracle_steps
from toys import BATCH, SAMPLES, STEPS_PER_EPOCH, toy_data, toy_model, toy_recipe

# Options that split even toys into several chunks, and let them be large enough for low-rank factors.
FOR_TOYS = {"int8": "int8:chunk=16", "topk": "topk:ratio=0.1", "powersgd": "powersgd:rank=1:min_vector=50"}
PAIRS = [
    f"{strategy}+{codec}"
    for strategy, codec in itertools.product(available_strategies(), codecs.classes)
    if is_possible(f"{strategy}+{codec}") and build(f"{strategy}+{codec}").guarantee is Guarantee.LOSSY
]
TOY_PAIRS = [f"{s}+{FOR_TOYS.get(c, c)}" for s, _, c in (pair.partition("+") for pair in PAIRS)]
WITH_FEEDBACK = [pair for pair in TOY_PAIRS if "topk" in pair or "powersgd" in pair]
# Several buckets, which ddp changes after the first step.
MANY_BUCKETS = [f"ddp:bucket_mb=0.001+{FOR_TOYS[codec]}" for codec in ("topk", "powersgd", "int8")]
SHARES = [0.5, 0.0, 0.3, 0.2]  # a worker without samples still sends its residual error


def test_lossless_codecs_keep_the_guarantee() -> None:
    for strategy, codec in itertools.product(available_strategies(), codecs.classes):
        if not is_possible(f"{strategy}+{codec}"):
            continue
        loses = codecs.classes[codec].relative_error > 0
        guarantee = build(f"{strategy}+{codec}").guarantee
        if build(strategy).guarantee is Guarantee.EXACT:
            assert guarantee is (Guarantee.LOSSY if loses else Guarantee.EXACT)
    assert {"ring+fp16", "ring+bf16", "ddp+bf16", "ring+int8", "ddp+topk", "all-reduce+powersgd"} <= set(PAIRS)


@pytest.mark.each_choice
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("strategy", "codec"), [pair.split("+") for pair in PAIRS])
def test_first_step_is_within_the_codecs_error(pool: LocalPool, strategy: str, codec: str, world_size: int) -> None:
    pair = f"{strategy}+{codec}"
    [row] = verify(cases([pair], [world_size], ["lenet5"]), pool, on_case=lambda _: None)
    assert row["guarantee"] == "LOSSY"
    # Gradients of different samples cancel in part, but not to nothing.
    bound = build(pair).codec.error_bound(world_size)
    assert bound <= row["tolerance"] < 3 * bound
    assert row["passed"], row
    assert row["bytes_as_predicted"]
    # The result is not exact, so the codec was used.
    assert row["max_relative_error"] > 1e-9


def test_the_oracles_spread() -> None:
    """The oracle's measure of how much workers' gradients cancel, computed by hand for the first step of 7 samples."""
    spreads: list[float] = []
    recipe, data, model = toy_recipe(3), toy_data(), toy_model("plain")
    for _ in oracle_steps(recipe, data, toy_model("plain"), 3, spreads.append):
        pass
    plan = ShardPlan(SAMPLES, BATCH, 3, recipe.seed)
    gradients = []
    for rank in range(3):
        model.zero_grad()
        inputs, target = data.train.batch(plan.shard(0, 0, rank), 0)
        # A worker's sum over samples, divided by the samples of all workers, is its part of the weighted mean.
        (nn.functional.cross_entropy(model(inputs), target, reduction="sum") / BATCH).backward()
        gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
    expected = sum(float(gradient.norm()) for gradient in gradients) / float(torch.stack(gradients).sum(0).norm())
    assert spreads[0] == pytest.approx(expected)
    assert len(spreads) == 2 * STEPS_PER_EPOCH
    assert min(spreads) >= 1


def encoded_bytes(codec: str, tensors: list[Tensor]) -> int:
    """Return the encoded bytes of the tensors of a step, computed separately for each codec."""
    sizes = [tensor.numel() for tensor in tensors]
    if codec in ("fp16", "bf16"):
        return 2 * sum(sizes)
    if codec == "int8":
        return sum(size + 4 * -(-size // 16) for size in sizes)
    if codec == "topk":
        return sum((8 + 4) * max(1, -(-size // 10)) for size in sizes)
    total = 0
    for tensor in tensors:
        rows = tensor.shape[0]
        if tensor.dim() == 1 and tensor.numel() >= 50:
            rows = next(side for side in itertools.count(1) if side * side >= tensor.numel())
        factors = rows + -(-tensor.numel() // rows)
        is_cut = (tensor.dim() > 1 or tensor.numel() >= 50) and 2 * factors < tensor.numel()
        total += 8 * (factors if is_cut else tensor.numel())
    return total


@pytest.mark.parametrize("pair", [pair for pair in TOY_PAIRS if on_threads_supported(pair)])
def test_replicas_are_the_same_bits_and_traffic_shrinks(pair: str) -> None:
    workers = on_threads(3, jobs.certify, strategy=pair, changes={})
    for worker in workers:
        for step, row in enumerate(worker["steps"]):
            assert row["digest"] == workers[0]["steps"][step]["digest"]
            assert row["counted"] == row["predicted"]
    assert any(row["relative_error"] > 1e-9 for worker in workers for row in worker["steps"])
    strategy = build(pair)
    if isinstance(strategy, GradientAveraging):
        assert_shrinks(pair, workers, is_fused=strategy.fused)


def assert_shrinks(pair: str, workers: list, *, is_fused: bool) -> None:
    name, codec = pair.partition("+")[0], build(pair).codec
    plain = on_threads(3, jobs.certify, strategy=name, changes={})
    tensors = [parameter.detach() for parameter in toy_model("plain").parameters()]
    if is_fused:
        tensors = [torch.cat([tensor.reshape(-1) for tensor in tensors])]
    numel, encoded = sum(tensor.numel() for tensor in tensors), encoded_bytes(codec.name, tensors)
    assert encoded < 8 * numel / 1.5  # toys are in float64
    for worker, exact in zip(workers, plain, strict=True):
        for row, before in zip(worker["steps"], exact["steps"], strict=True):
            if codec.name in ("int8", "topk"):
                assert row["counted"] == {("all_gather", None): encoded}
            elif codec.cast is not None or not is_fused:  # two factors are split into other chunks than one vector
                assert row["counted"] == {key: n * encoded / (8 * numel) for key, n in before["counted"].items()}
            else:
                assert sum(row["counted"].values()) < sum(before["counted"].values()) / 1.5


def run_slopes(pool: LocalPool, pair: str, world_size: int, **arguments: object) -> list:
    if on_threads_supported(pair):
        return on_threads(world_size, jobs.average_slopes, strategy=pair, **arguments)
    return on_pool(pool, world_size, jobs.average_slopes, strategy=pair, **arguments)


def kept(state: dict[str, list]) -> Tensor:
    """Return a worker's residual errors in the order of the parameters; zeros for uncompressed tensors."""
    sizes = [math.prod(shape) for shape in jobs.Slopes.SHAPES]
    fused = state.get("codec.error.0", [])
    if len(fused) == sum(sizes):
        return torch.tensor(fused, dtype=torch.float64)
    parts = [state.get(f"codec.error.{key}", [0.0] * size) for key, size in enumerate(sizes)]
    return torch.tensor(list(itertools.chain(*parts)), dtype=torch.float64)


@pytest.mark.parametrize("pair", [*WITH_FEEDBACK, *MANY_BUCKETS[:2]])
def test_errors_are_sent_in_later_steps(pool: LocalPool, pair: str) -> None:
    steps = list(range(5))
    workers = run_slopes(pool, pair, 4, steps=steps, shares=SHARES)
    put_in = sum(
        share * torch.cat([slope.reshape(-1) for slope in jobs.slopes_of(rank, step)])
        for rank, share in enumerate(SHARES)
        for step in steps
    )
    errors = sum(kept(state) for _, state, _, _ in workers)
    for got, _, counted, predicted in workers:
        # About 20 additions of numbers near 1 in float64.
        total = torch.tensor(got, dtype=torch.float64).sum(0)
        torch.testing.assert_close(total + errors, put_in, rtol=1e-12, atol=1e-12)
        assert got == workers[0][0]
        assert counted == predicted
    assert float(errors.norm()) > 0.1 * float(put_in.norm())  # and residual errors were large


@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("strategy", "codec"),
    [pair.split("+") for pair in (*(pair for pair in TOY_PAIRS if not servers_of(build(pair), 3)), *MANY_BUCKETS)],
)
def test_a_restart_changes_no_bit(pool: LocalPool, strategy: str, codec: str) -> None:
    pair = f"{strategy}+{codec}"
    whole = run_slopes(pool, pair, 3, steps=[0, 1, 2, 3], shares=SHARES[1:])
    first = run_slopes(pool, pair, 3, steps=[0, 1], shares=SHARES[1:])
    states = [state for _, state, _, _ in first]
    has_feedback = "topk" in pair or "powersgd" in pair
    assert all(bool(state) == has_feedback for state in states)
    rest = run_slopes(pool, pair, 3, steps=[2, 3], shares=SHARES[1:], state=states)
    forgetful = run_slopes(pool, pair, 3, steps=[2, 3], shares=SHARES[1:])
    for rank in range(3):
        assert rest[rank][0] == whole[rank][0][2:]
        assert rest[rank][1] == whole[rank][1]
        if has_feedback:
            assert forgetful[rank][0] != rest[rank][0]
