"""How much memory a run will need, and what is said where that is more than there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from paceline.recipe import OptimizerConfig, Recipe
from paceline.strategies import available_strategies
from paceline.study.entries import make_entry
from paceline.study.memory_prediction import (
    HEAP_FACTOR,
    TRAINING_BYTES,
    MemoryLimit,
    amount,
    available_bytes,
    fitting_micro_batch,
    footprint_key,
    measure_footprints,
    memory_limits,
    memory_refusal,
    predict,
)
from paceline.train.footprint import Footprint

MB = 1_000_000
SGD = OptimizerConfig(momentum=0.9)
FOOTPRINT = Footprint(
    process_bytes=200 * MB,
    data_bytes=50 * MB,
    parameter_bytes=10 * MB,
    tensors=[(1_500_000, 4), (1_000_000, 4)],
    batch_line=(0.0, 0.1 * MB),
    load_changes=[(0, (0.0, 0.02 * MB))],
    # Gradients, then a hundred activations, which are too small to be mapped by themselves.
    step_changes=[(0, (10.0 * MB, 0.0)), *((number, (0.0, 0.02 * MB)) for number in range(1, 101))],
    evaluation_changes=[(0, (0.0, 0.02 * MB))],
    state_bytes={SGD: 10 * MB},
)


def recipe(**changes: Any) -> Recipe:
    plain = {"workers": 4, "strategy": "none", "optimizer.momentum": 0.9, "train.epochs": 1}
    return Recipe().replace({**plain, **{key.replace("__", "."): value for key, value in changes.items()}})


def predicted(**changes: Any) -> Any:
    made = recipe(**changes)
    return predict(FOOTPRINT, made, make_entry(made.strategy, made))


def test_parts_add_up() -> None:
    found = predicted(train__batch_size=400)
    tensors = found.parameters_bytes + found.gradients_bytes + found.optimizer_bytes
    tensors += found.activations_bytes + found.buffers_bytes
    assert found.worker_bytes == 250 * MB + TRAINING_BYTES + tensors
    assert found.total_bytes == 4 * found.worker_bytes
    assert (found.parameters_bytes, found.gradients_bytes, found.optimizer_bytes) == (10 * MB, 10 * MB, 10 * MB)
    # 100 samples per worker: the batch and 200 MB of activations, with holes between them.
    assert found.activations_bytes == HEAP_FACTOR * (10 + 200) * MB


def test_the_batch_counts_by_worker_and_pieces_by_their_size() -> None:
    whole = predicted(train__batch_size=400).activations_bytes
    assert predicted(train__batch_size=200).activations_bytes < whole
    assert predicted(train__batch_size=400, workers=2).activations_bytes > whole
    pieces = predicted(train__batch_size=400, train__micro_batch_size=25).activations_bytes
    assert (
        pieces == HEAP_FACTOR * (10 + 50 + 10) * MB
    )  # the batch, the piece's step, and gradients of the pieces before
    accumulated = predicted(train__batch_size=400, strategy="overlap:accumulate=4")
    assert accumulated.activations_bytes == pieces


def test_activations_that_are_mapped_by_themselves_leave_no_holes() -> None:
    # 2,000 samples per worker: every activation has 40 MB, and so have the batch's 200 MB.
    found = predicted(train__batch_size=8000)
    assert (
        found.activations_bytes == HEAP_FACTOR * 20 * MB + (200 + 4000) * MB
    )  # the heap: parameters copied to be saved


def test_strategies_add_their_buffers() -> None:
    assert predicted().buffers_bytes == 0
    assert predicted(strategy="ring").buffers_bytes >= 10 * MB
    assert predicted(strategy="gather-scatter").buffers_bytes >= 5 * 6 * MB
    assert predicted(strategy="stepwise").buffers_bytes >= 40 * MB
    assert predicted(strategy="sharded").optimizer_bytes == 2.5 * MB
    servers = predicted(strategy="parameter-server")
    assert servers.total_bytes == 4 * servers.worker_bytes + servers.server_bytes


@pytest.mark.parametrize("name", list(available_strategies()))
def test_alone_no_strategy_needs_more_than_its_servers_do(name: str) -> None:
    alone = predicted(strategy=name, workers=1)
    assert alone.buffers_bytes == (20 * MB if name == "parameter-server" else 0)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    made = recipe(train__batch_size=4000)
    entry = make_entry("none", made)
    room = [MemoryLimit(4000 * MB, 4)]
    reason = memory_refusal(FOOTPRINT, made, entry, room)
    size = fitting_micro_batch(FOOTPRINT, made, entry, room)
    assert size is not None
    assert reason.startswith("needs 17.56 GB (4 workers of 4.39 GB), but 4.00 GB are available; ")
    assert f"--micro-batch-size {size} would need" in reason
    fits, next_one = (predict(FOOTPRINT, made, entry, micro).total_bytes for micro in (size, 2 * size))
    assert fits <= 4000 * MB < next_one
    assert memory_refusal(FOOTPRINT, made.replace({"train.micro_batch_size": size}), entry, room) == ""


def test_what_never_fits_says_so() -> None:
    made = recipe(train__batch_size=4000)
    reason = memory_refusal(FOOTPRINT, made, make_entry("none", made), [MemoryLimit(100 * MB, 4)])
    assert reason.endswith("even one sample at a time would need 1.72 GB, so use fewer workers or a smaller model")
    synced = recipe(train__batch_size=4000, train__batchnorm="sync")
    reason = memory_refusal(FOOTPRINT, synced, make_entry("none", synced), [MemoryLimit(100 * MB, 4)])
    assert "batchnorm sync takes no micro-batches" in reason


def test_an_emulated_node_has_room_for_its_own_workers() -> None:
    made = recipe(train__batch_size=400, cluster__nodes=2, cluster__memory="1g")
    entry = make_entry("none", made)
    _, node = memory_limits(made, entry)
    assert (node.available_bytes, node.num_workers) == (1 << 30, 2)
    each = predict(FOOTPRINT, made, entry).worker_bytes
    assert node.needed_bytes(predict(FOOTPRINT, made, entry)) == 2 * each
    reason = memory_refusal(FOOTPRINT, made, entry, [replace(node, available_bytes=each)])
    assert "(2 workers of" in reason
    assert "but a node has" in reason


def test_a_control_group_limits_what_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = (tmp_path, "memory.max", "memory.current", "inactive_file")
    machine = psutil.virtual_memory().available
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=machine))
    assert available_bytes([]) == machine
    assert available_bytes([group]) == machine  # a system without such files
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes([group]) == machine
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_bytes([group]) == 300
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    assert available_bytes([group]) == 500


def test_one_process_measures_for_all_that_share_model_and_data() -> None:
    small = Recipe().replace({"workers": 1, "data.train_samples": 40, "data.test_samples": 10})
    made = [small.replace({"train.batch_size": size, "optimizer.lr": lr}) for size, lr in ((10, 0.1), (20, 0.2))]
    found, reasons = measure_footprints(made)
    assert reasons == []
    assert list(found) == [footprint_key(made[0])]
    [footprint] = found.values()
    assert footprint.gradient_bytes == 4 * 61_706
    assert footprint.process_bytes > 50 * MB
    for one in made:
        assert predict(footprint, one, make_entry("none", one)).worker_bytes > footprint.process_bytes


def test_a_model_that_two_samples_cannot_train_is_not_predicted(tmp_path: Path) -> None:
    file = tmp_path / "picky.py"
    file.write_text(
        "import torch\n"
        "class Picky(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training and len(x) < 8:\n"
        "            raise ValueError('at least eight')\n"
        "        return super().forward(x.flatten(1))\n"
        "def model():\n"
        "    return Picky(784, 10)\n"
    )
    made = recipe(model__name=f"{file}:model", data__name="synthetic:1x28x28x10")
    found, [reason] = measure_footprints([made])
    assert found == {}
    assert "cannot be predicted" in reason
    assert "at least eight" in reason


def test_amounts_are_readable() -> None:
    assert (amount(12_345_678), amount(2_345_678_901)) == ("12 MB", "2.35 GB")
