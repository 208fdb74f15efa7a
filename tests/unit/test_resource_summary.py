"""From samples to a result's resources and network, on made-up samples."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import build, is_possible
from made_up import made_up_worker
from paceline.codecs import TensorSpec
from paceline.comm import Counter
from paceline.measure.sampler import COLUMNS, ThinnedRows, summarise_network, summarise_resources
from paceline.recipe import Recipe
from paceline.results import convert, to_json
from paceline.results.worker_report import WorkerReport
from paceline.strategies import available_strategies
from paceline.strategies.base import predict_traffic
from paceline.study.entries import make_entry
from paceline.study.run_results import run_result


def sample(time_s: float, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, 1)
    row |= {"kind": "sample", "time_s": time_s, "peak_rss_bytes": 10, "gpu_percent": None, "gpu_memory_bytes": None}
    return {**row, **changes}


@given(st.integers(0, 3000), st.integers(4, 50))
def test_thinned_rows_are_few_even_and_have_both_ends(count: int, most: int) -> None:
    rows = [{"time_s": index} for index in range(count)]
    thinned = ThinnedRows(most)
    for row in rows:
        thinned.add(row)
    kept = [row["time_s"] for row in thinned.rows]
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    if count <= most - 1:
        assert kept == list(range(count))
    else:
        assert (kept[0], kept[-1]) == (0, count - 1)
        assert len(kept) >= most // 2
        distances = {b - a for a, b in pairwise(kept[:-1])}
        assert len(distances) == 1


def test_resources_over_time() -> None:
    found = summarise_resources(
        {1: [sample(0.0), sample(0.2, rss_bytes=7, peak_rss_bytes=30)], 0: [sample(0.1)], 2: []}
    )
    assert found is not None
    first, second = found["per_worker"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert second["time_s"] == [0.0, 0.2]
    assert second["rss_bytes"] == [1, 7]
    assert second["peak_rss_bytes"] == 30
    assert second["gpu_percent"] is None
    assert second["gpu_memory_bytes"] is None


def test_no_samples_no_resources() -> None:
    assert summarise_resources({}) is None
    assert summarise_network([convert(made_up_worker(0, [1.0, 1.0]), WorkerReport)]) is None


def test_the_kernels_count_stands_beside_the_comms() -> None:
    last = {"network_sent_bytes": 105, "network_received_bytes": 95, "network_header_bytes": 9}
    last |= {"network_retransmitted_bytes": 2, "node_sent_bytes": None, "node_received_bytes": None}
    counts: dict[str, Any] = {"network_sent_bytes": 100, "network_received_bytes": 90, "memory_sent_bytes": 40}
    counts |= {"at_last_step": last, "predicted_network_sent_bytes": 101}
    found = summarise_network([convert(made_up_worker(3, [1.0], **counts), WorkerReport)])
    assert found is not None
    assert to_json(found) == {
        "per_worker": [
            {
                "rank": 3,
                "kernel_sent_bytes": 105,
                "kernel_received_bytes": 95,
                "comm_sent_bytes": 100,
                "comm_received_bytes": 90,
                "predicted_sent_bytes": 101,
                "memory_bytes": 40,
                "retransmitted_bytes": 2,
                "header_bytes": 9,
                "node_sent_bytes": None,
                "node_received_bytes": None,
            }
        ]
    }


def test_a_runs_result_has_both() -> None:
    recipe = Recipe().replace({"workers": 2})
    rows = [sample(0.0), sample(1.0)]
    last = {"network_sent_bytes": 5, "network_received_bytes": 5}
    facts = {"samples": rows, "at_last_step": last}
    workers = [convert(made_up_worker(rank, [1.0, 1.0], **facts), WorkerReport) for rank in range(2)]
    result = run_result(recipe, make_entry("ring", recipe), workers, total_s=9.0)
    assert len(result["resources"]["per_worker"]) == 2
    assert [row["kernel_sent_bytes"] for row in result["network"]["per_worker"]] == [5, 5]


SPECS = [TensorSpec(120, 4), TensorSpec(7, 4)]
NAMES = [name for name in available_strategies() if is_possible(name)]


@pytest.mark.parametrize("name", [*NAMES, "local-sgd:sync_every=5", "stepwise:exact_every=7:rotate=false"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_runs_traffic_is_that_of_its_steps(name: str, world_size: int) -> None:
    strategy = build(name)
    for num_steps in (0, 1, 5, 100):
        found = predict_traffic(strategy, SPECS, rank=0, world_size=world_size, num_steps=num_steps)
        steps = [operation for step in range(num_steps) for operation in strategy.traffic(SPECS, 0, world_size, step)]
        assert found == Counter.of(steps)
