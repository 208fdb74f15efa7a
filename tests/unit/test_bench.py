"""What `paceline bench` computes and checks: figures by hand, sizes, plans, and trials that can fail."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

import jobs
from bench_comms import Elsewhere, Lending
from helpers import TESTS, on_pool, on_threads
from made_up import made_up_bench_rows
from paceline.cli import make_app, study_session
from paceline.comm import comms
from paceline.comm.threads import ThreadsComm
from paceline.comm.worker_placement import choose_comm
from paceline.errors import RunError, UsageError
from paceline.launch.local import LocalPool
from paceline.present.numbers import binary_bytes
from paceline.study.bench import (
    BenchRequest,
    bandwidth,
    bus_factor,
    find_comms,
    find_ops,
    parse_bytes,
    sizes_between,
)
from paceline.study.bench_trials import DTYPES, OPS, make_trials, trial_job
from paceline.train.context import Context

PLAN: dict[str, Any] = {"ops": ("all_reduce",), "comms": ("torch",), "sizes": (4096,)}
LENDING, IN_PLACE, OTHER = (f"{TESTS / 'bench_comms.py'}:{name}" for name in ("Lending", "LendingInPlace", "Elsewhere"))


@pytest.mark.parametrize(
    ("op", "alone", "four"),
    [
        ("all_reduce", 0, 1.5),
        ("ring", 0, 1.5),
        ("gather-scatter", 0, 1.5),
        ("reduce_scatter", 0, 0.75),
        ("all_gather", 0, 0.75),
        ("broadcast", 1, 1),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(op: str, alone: float, four: float) -> None:
    assert bus_factor(op, 1) == alone
    assert bus_factor(op, 4) == four


def test_every_operation_has_a_bus_factor() -> None:
    assert all(bus_factor(op, 2) > 0 for op in OPS)


def test_bandwidth_by_hand() -> None:
    found = bandwidth("all_reduce", 8_000_000, 4, [0.001, 0.002, 0.009], [0.0005, 0.0004, 0.0006])
    assert found.time_s.p50 == 0.002
    assert found.time_s.p95 == pytest.approx(0.0083)  # nine tenths of the way from the second to the third
    assert found.algbw_bytes_per_s == pytest.approx(4e9)
    assert found.busbw_bytes_per_s == pytest.approx(6e9)
    assert found.copy_limit_bytes_per_s == pytest.approx(16e9)
    assert found.percent_of_copy_limit == pytest.approx(37.5)


def test_an_iteration_takes_as_long_as_its_slowest_worker() -> None:
    fast, torch_row = made_up_bench_rows()
    assert fast["time_s"]["p50"] == 4.5  # of 4 and 5
    assert torch_row["time_s"]["p50"] == 9.0  # of 8 and 10
    assert fast["copy_limit_bytes_per_s"] == pytest.approx(4096 / 1.5)  # of 2 and 1
    assert fast["speedup"]["over"] == "torch"
    assert fast["speedup"]["value"] == pytest.approx(2.0)  # 8 over 4, 10 over 5
    assert torch_row["speedup"]["value"] == 1.0


def test_one_wrong_worker_makes_a_result_wrong() -> None:
    fast, torch_row = made_up_bench_rows()
    assert (fast["correct"], fast["wrong_workers"]) == (False, [1])
    assert (torch_row["correct"], torch_row["wrong_workers"]) == (True, [])
    assert made_up_bench_rows(check=False)[1]["correct"] is None


def test_without_torch_the_first_comm_is_the_reference() -> None:
    assert BenchRequest(**{**PLAN, "comms": ("b.py:B", "a.py:A")}).reference == "b.py:B"
    assert BenchRequest(**{**PLAN, "comms": ("a.py:A", "torch")}).reference == "torch"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("4K", 4096), ("4k", 4096), ("37M", 37 * 1024**2), (" 1 G ", 1024**3), ("0", 0)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "K", "4KB", "-4K", "1.5M", "4T", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("num_bytes", [1, 1000, 1023, 4096, 37 << 20, 1 << 30, 512 << 10])
def test_round_sizes_are_shown_as_they_are_read(num_bytes: int) -> None:
    assert parse_bytes(binary_bytes(num_bytes)) == num_bytes


def test_other_sizes_are_shown_to_three_digits() -> None:
    assert binary_bytes(4092) == "4K"
    assert binary_bytes(1_000_000) == "977K"
    assert binary_bytes(3 << 19) == "1.5M"


def test_sizes_grow_by_the_factor_and_stop_at_the_largest() -> None:
    assert sizes_between(4, 64, 4) == (4, 16, 64)
    assert sizes_between(4, 63, 4) == (4, 16)
    assert sizes_between(4, 4, 2) == (4,)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--op", "all_redcue"], "did you mean 'all_reduce'"),
        (["--op", "ring,ring"], "op 'ring' is named twice"),
        (["--op", ","], "no op to measure"),
        (["--comm", "torhc"], "did you mean 'torch'"),
        (["--comm", "torch,torch"], "comm 'torch' is named twice"),
        (["--comm", ""], "no comm to measure"),
        (["--comm", "threads"], "does not connect processes"),
        (["--comm", "bench_comms.Elsewhere"], "unknown comm"),
        (["--comm", "paceline.comm.torch:make_store"], "is not a Comm class"),
        (["--min-bytes", "8K", "--max-bytes", "4K"], "--min-bytes 8192 is more than --max-bytes 4096; exchange them"),
        (["--min-bytes", "0"], "--min-bytes 0 is too small; use at least 1"),
        (["--factor", "1"], "--factor 1 is too small"),
        (["--bytes", "4K,lots"], "'lots' is not a number of bytes"),
        (["--bytes", "4K,4096"], "size 4096 is named twice"),
        (["--bytes", "6"], "6 bytes are not a whole number of float32"),
        (["--bytes", "4", "--dtype", "float64"], "4 bytes are not a whole number of float64"),
        (["--bytes", "0"], "0 bytes are not a whole number"),
        (["--bytes", ","], "no size to measure"),
        (["--op", "all_gather", "--bytes", "8", "--workers", "3"], "8 bytes cannot be cut into 3 parts for all_gather"),
        (["--dtype", "float23"], "did you mean 'float32'"),
        (["--workers", "0"], "--workers 0 is too few"),
        (["--iterations", "0"], "--iterations 0 is too few"),
        (["--warmup", "-1"], "--warmup -1 is too few"),
        (["--threads", "0"], "--threads 0 is too few"),
        (["--dtype", "bfloat16", "--workers", "129"], "bfloat16 cannot hold sums over 129 workers exactly"),
        (["--plot", "plot.png"], "--plot 'plot.png': name a file that ends in .html or .htm"),
        (["--plot", "no/such/plot.html"], "--plot 'no/such/plot.html': the folder 'no/such' does not exist"),
        (["--json", "no/such/file.json"], "--json 'no/such/file.json': the folder 'no/such' does not exist"),
    ],
)
def test_a_wrong_request_starts_nothing(arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_session, "start_workers", lambda *_: pytest.fail("workers were started"))
    outcome = CliRunner().invoke(make_app(), ["bench", *arguments])
    assert isinstance(outcome.exception, UsageError), outcome.output
    assert sentence in str(outcome.exception)


def test_all_means_every_operation() -> None:
    assert find_ops("all") == tuple(OPS)
    assert find_ops("ring, all_reduce") == ("ring", "all_reduce")


def test_by_default_all_comms_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    usable, missing = find_comms(None)
    chosen = choose_comm(num_workers=4)
    assert find_comms("auto", num_workers=4) == ((chosen,), {})
    assert find_comms(f"auto,{chosen}", num_workers=4)[0] == (chosen,)  # whoever names it beside auto wants it once
    assert "torch" in usable
    assert "threads" not in {*usable, *missing}
    monkeypatch.setitem(comms.classes, "elsewhere", Elsewhere)
    assert find_comms(None) == (usable, {**missing, "elsewhere": "it needs a machine that is not here"})
    with pytest.raises(UsageError, match="comm 'elsewhere' cannot be used here: it needs a machine"):
        find_comms("torch,elsewhere")


def test_a_comm_of_one_host_is_left_out_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(comms.classes, "lending", Lending)
    assert "lending" in find_comms(None, num_nodes=2)[0]
    monkeypatch.setattr(Lending, "between_nodes", False)
    assert "lending" in find_comms(None, num_nodes=1)[0]
    assert find_comms(None, num_nodes=2)[1]["lending"] == "it does not connect hosts, but there are 2"


def right_and_untouched(context: Context, op: str, numel: int) -> tuple[bool, bool]:
    """Whether an operation comes out right, and whether the check is content without it."""
    (trial,) = make_trials(op, context.comm, numel, DTYPES["float32"])
    trial.fill_to_check()
    untouched = trial.is_right()
    trial.do()
    return trial.is_right(), untouched


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("op", OPS)
def test_operations_come_out_right_and_doing_nothing_does_not(op: str, world_size: int) -> None:
    workers = on_threads(world_size, right_and_untouched, op=op, numel=world_size * 300)
    assert all(right for right, _ in workers)
    content = [rank for rank, (_, untouched) in enumerate(workers) if untouched]
    assert content == ([0] if op == "broadcast" else [])  # the root has what it broadcasts


def test_a_number_in_the_wrong_place_is_found() -> None:
    (comm,) = ThreadsComm.world(1)
    (trial,) = make_trials("all_reduce", comm, 1024, DTYPES["float32"])
    trial.fill_to_check()
    assert trial.is_right()
    trial.input.copy_(trial.input.roll(512))  # halves that changed places
    assert not trial.is_right()


@pytest.mark.parametrize(
    ("comm", "expected"),
    [("torch", ["private"]), (LENDING, ["shared", "private", "plain"]), (IN_PLACE, ["private", "plain"])],
)
def test_an_all_reduce_is_done_in_every_way_that_differs(pool: LocalPool, comm: str, expected: list[str]) -> None:
    cases = [("all_reduce", 500), ("broadcast", 500)]
    request = {"dtype": "float32", "warmup": 0, "iterations": 1, "check": True}
    for found in on_pool(pool, 2, trial_job, comms=[comm, OTHER], cases=cases, **request):
        reductions, broadcasts = [[(trial["comm"], trial["result"]) for trial in trials[1:]] for trials in found]
        assert reductions == [*((comm, result) for result in expected), (OTHER, "private")]
        assert broadcasts == [(comm, "private"), (OTHER, "private")]
        assert all(trial["is_right"] for trials in found for trial in trials)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_type_on_processes(pool: LocalPool, dtype: str) -> None:
    request = {"dtype": dtype, "warmup": 1, "iterations": 2, "check": True}
    cases = [(op, 3 * 70) for op in OPS]
    workers = on_pool(pool, 3, trial_job, comms=["torch"], cases=cases, **request)
    assert len(workers) == 3
    for found in workers:
        assert [[trial["op"] for trial in trials] for trials in found] == [["copy", op] for op in OPS]
        for trials in found:
            assert all(trial["is_right"] and len(trial["times_s"]) == 2 for trial in trials)


def test_a_task_may_open_further_comms(pool: LocalPool) -> None:
    assert on_pool(pool, 3, jobs.three_sums) == [[[3.0, 3.0], [6.0, 6.0], [9.0, 9.0]]] * 3


def test_without_a_launcher_there_is_no_further_comm() -> None:
    with pytest.raises(RunError, match="'torch' cannot be opened"):
        Context(ThreadsComm.world(1)[0]).connect("torch")
